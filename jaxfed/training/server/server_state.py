"""State that a server carries from round to round to train a model, and each client's share of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.cohort import Array

# If the server's own examples are rows of a cohort, these have the ids -2, -3, ...; -1 is padding.
_FIRST_OF_SERVER = -2


class ServerState(NamedTuple):
    """The state of every method that trains one model by local updates.

    Leaves that are "stacked [M, ...]" are arrays, or tables where M is large
    (`jaxfed.training.server.client_rows`).

    Fields:
        model: parameters and running statistics; what is evaluated, and what clients receive.
        optimizer: the server optimizer's state.
        teacher: a model of an earlier round that labels (FedSem+), and who has received it; () without one.
        control: values beside the model (`Control`; SCAFFOLD's server control variate); ().
        clients: each client's state, defined by the method, stacked [M, ...]; ().
        memory: the server's store of its clients' uploads (ProtoFSSL's prototypes); ().
        client_optimizers: states of clients' optimizers if they are kept, stacked [M, ...]; ().
        round: int32, rounds done.
        num_training: float32 [2], the numbers of clients that can train in the two stages of a run, by which
            sums of `control` are divided; ().
    """

    model: nnx.State
    optimizer: Any
    teacher: Any
    control: Any
    clients: Any
    round: jax.Array
    memory: Any = ()
    client_optimizers: Any = ()
    num_training: Any = ()


def server_ids(number: int) -> np.ndarray:
    """int32 [number], ids that mark rows of a cohort as the server's own."""
    return (_FIRST_OF_SERVER - np.arange(number)).astype(np.int32)


def client_keys(key: jax.Array, client_id: Array) -> jax.Array:
    """One typed key [K] for each client, by its number alone, whatever the rest of the cohort is."""
    ids = jnp.asarray(client_id)
    # The server's rows count down from the largest number, which no client has.
    of_server = jnp.iinfo(jnp.int32).max - (_FIRST_OF_SERVER - ids)
    numbers = jnp.where(ids <= _FIRST_OF_SERVER, of_server, jnp.maximum(ids, 0))
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers)


def client_draws(key: jax.Array, client_id: jax.Array) -> jax.Array:
    """A uniform number in [0, 1) for each client [K], by its number alone; -1 draws as client 0."""
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.maximum(client_id, 0))
    return jax.vmap(jax.random.uniform)(keys)


def is_finite(model: nnx.State) -> jax.Array:
    """bool scalar: True if all numbers of a model are finite."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(model)]
    return jnp.all(jnp.stack(leaves))


def with_statistics(model: nnx.State, statistics: nnx.State) -> nnx.State:
    """The model's parameters with other running statistics."""
    return nnx.merge_state(nnx.split_state(model, nnx.Param, ...)[0], statistics)


def together(**parts: nnx.State) -> nnx.State:
    """One state made of several; `state[name]` gives a part back."""
    return nnx.State({name: part.raw_mapping for name, part in parts.items()})
