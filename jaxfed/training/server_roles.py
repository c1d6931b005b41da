"""What the server does beside averaging models: what it keeps of uploads, and how a state classifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.clients import Federation
from jaxfed.training.ingredients import Training
from jaxfed.training.server_state import ServerState


class Memory(NamedTuple):
    """What the server keeps of what clients upload, beside models.

    Fields:
        init: model, federation -> memory.
        update: memory, client_id int32 [K] (-1 is padding), uploads [K, ...], rounds done (int32, this one
            too), key, communication -> memory; host code after the clients' stage, so that a protocol may
            run there. It counts what it sends itself.
    """

    init: Callable[[nnx.State, Federation], Any] = lambda model, federation: ()
    update: Callable[..., Any] = lambda memory, *of_the_round: memory


NO_MEMORY = Memory()


class Judge(NamedTuple):
    """How a state classifies.

    Fields:
        needed: state -> what of it is needed; host code.
        probabilities: (needed, x [n, ...]) -> float32 [n, C]; jit-traceable.
        of_client: (state after a round, model that a client sent in it, client's number) -> the same of that
            client's upload alone, for those who look at it.
    """

    needed: Callable[[ServerState], Any]
    probabilities: Callable[[Any, jax.Array], jax.Array]
    of_client: Callable[[ServerState, nnx.State, int], Any] = lambda state, model, client: model


def by_network(training: Training) -> Judge:
    """By the softmax of the server's network."""

    def probabilities(model: nnx.State, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(training.model.apply(model, x).astype(jnp.float32))

    return Judge(lambda state: state.model, probabilities)
