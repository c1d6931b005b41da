"""The server's roles beside averaging models: a store of clients' uploads, and a state's classifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.clients import Federation
from jaxfed.training.ingredients import Training
from jaxfed.training.server.server_state import ServerState


class Memory(NamedTuple):
    """The server's store of the clients' uploads other than models.

    Fields:
        init: model, federation -> memory.
        update: memory, client_id int32 [K] (-1 is padding), uploads [K, ...], rounds done (int32, this one
            too), key, communication -> memory; host code after the clients' stage, so that a protocol may
            run there. It counts its own messages.
    """

    init: Callable[[nnx.State, Federation], Any] = lambda model, federation: ()
    update: Callable[..., Any] = lambda memory, *of_the_round: memory


NO_MEMORY = Memory()


class Judge(NamedTuple):
    """The classifier of a state.

    Fields:
        needed: state -> the part of it that classification needs; host code.
        probabilities: (needed, x [n, ...]) -> float32 [n, C]; jit-traceable.
        of_client: (state after a round, model that a client sent in it, client's number) -> the part needed
            to classify by that client's upload alone, for views of single uploads.
    """

    needed: Callable[[ServerState], Any]
    probabilities: Callable[[Any, jax.Array], jax.Array]
    of_client: Callable[[ServerState, nnx.State, int], Any] = lambda state, model, client: model


def by_network(training: Training) -> Judge:
    """Return the classifier by the softmax of the server's network."""

    def probabilities(model: nnx.State, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(training.model.apply(model, x).astype(jnp.float32))

    return Judge(lambda state: state.model, probabilities)
