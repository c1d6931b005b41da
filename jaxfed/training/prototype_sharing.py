"""Prototypes between clients: who shows which, who helps whom, and how a state classifies by them.

The server keeps every client's newest prototypes. Of the clients of a round up to H, drawn at random, help
those of the next; with an interval R_H they help for so many rounds, by the prototypes that they had then. Or
those whose prototypes are newest help, of earlier rounds too where a round has fewer than H. Of helpers whose
mean alone is shared (`jaxfed.training.prototype_means`) it keeps that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.training.client_data import ClientData
from jaxfed.training.prototypes import (
    Distance,
    Prototypes,
    class_means,
    completed,
    mean_probabilities,
)
from jaxfed.training.server_roles import Judge, Memory
from jaxfed.training.server_state import ServerState, client_draws, scatter, stacked_for

if TYPE_CHECKING:
    from jaxfed.models import Model


HelperChoice = Literal["previous_round", "newest"]


class Store(NamedTuple):
    """What the server keeps.

    Fields:
        helpers: prototypes [min(H, M), C, D] of the clients that help in this round.
        latest: every client's newest, [M, C, D].
        round: int32 [M], the round they are of; 0 for none.
    """

    helpers: Prototypes
    latest: Prototypes
    round: jax.Array


def prototype_store(
    model: Model,
    num_classes: int,
    num_helpers: int,
    interval: int,
    choice: HelperChoice = "previous_round",
) -> Memory:
    """The store as the server's memory; helpers are chosen after rounds 1, 1 + R_H, 1 + 2 R_H, ..."""

    def init(state: nnx.State, federation: Federation) -> Store:
        dim, clients = embedding_size(model, state, federation), federation.num_clients
        return Store(
            nothing_shown(min(num_helpers, clients), num_classes, dim),
            nothing_shown(clients, num_classes, dim),
            jnp.zeros(clients, jnp.int32),
        )

    @jax.jit
    def updated(
        store: Store, client_id: jax.Array, shown: Prototypes, rounds: jax.Array, key: jax.Array
    ) -> Store:
        when = jnp.full(client_id.shape, rounds)
        most = len(store.helpers.is_there)
        latest, newest = scatter((store.latest, store.round), client_id, (shown, when))
        if choice == "previous_round":
            renewed = chosen(key, client_id, shown, most)
        else:
            everyone = jnp.arange(len(newest))
            renewed = chosen(key, everyone, latest, most, age=rounds - newest)
        is_due = (rounds - 1) % interval == 0
        helpers = jax.tree.map(lambda new, old: jnp.where(is_due, new, old), renewed, store.helpers)
        return Store(helpers, latest, newest)

    def update(store: Store, *of_the_round: Any) -> Store:
        *arrays, _ = of_the_round  # clients have said what they sent
        return updated(store, *arrays)

    return Memory(init, update)


def embedding_size(model: Model, state: nnx.State, federation: Federation) -> int:
    """D."""
    example = jax.ShapeDtypeStruct((1, *federation.x.shape[1:]), federation.x.dtype)
    return int(jax.eval_shape(model.features, state, example).shape[-1])


def nothing_shown(number: int, num_classes: int, dim: int) -> Prototypes:
    """Of so many clients that have none, [number, C, D]."""
    center = jnp.zeros((number, num_classes, dim))
    return Prototypes(center, jnp.zeros((number, num_classes), bool))


def helpers_sent(state: ServerState, cohort: Cohort, communication: Communication) -> Prototypes:
    """The same helpers for each client of the cohort, [K, H, C, D]; what there is of them counts."""
    helpers: Prototypes = state.memory.helpers
    num_clients = int(np.sum(np.asarray(cohort.client_id) >= 0))
    num_bytes = int(np.sum(message_bytes(helpers)))
    communication.down("prototypes", num_clients * num_bytes)
    return stacked_for(len(cohort.client_id), helpers)


def message_bytes(shown: Prototypes) -> jax.Array:
    """Bytes of each message of prototypes, int32 [...] of [..., C, D]: C bits say which there are.

    Bits fill whole bytes, numbers are float32. Who has no prototype sends nothing.
    """
    *_, num_classes, dim = shown.center.shape
    number = jnp.sum(shown.is_there, axis=-1, dtype=jnp.int32)
    return jnp.where(number > 0, -(-num_classes // 8) + 4 * dim * number, 0)


def client_prototypes(
    model: Model, state: nnx.State, data: ClientData, max_labels: int, num_classes: int, clip: float
) -> Prototypes:
    """Of all labels that the client has, which are its first examples, `max_labels` at most; 0: any number.

    With a clip B above 0 each embedding z counts as z min(1, B / |z|).
    """
    rows = slice(0, max_labels or None)
    embedding = model.features(state, data.x[rows]).astype(jnp.float32)
    if clip:
        length = jnp.linalg.norm(embedding, axis=-1, keepdims=True)
        embedding = embedding * jnp.minimum(1, clip / jnp.maximum(length, 1e-12))
    return class_means(
        embedding, data.label[rows], data.is_labeled[rows] & data.mask[rows], num_classes
    )


def withheld(own: Prototypes, data: ClientData, min_labels: int) -> Prototypes:
    """Without those of classes with fewer labels."""
    num_classes = len(own.is_there)
    is_labeled = data.is_labeled & data.mask
    count = jnp.sum(
        jnp.where(is_labeled[:, None], jax.nn.one_hot(data.label, num_classes), 0), axis=0
    )
    shown = own.is_there & (count >= min_labels)
    return Prototypes(jnp.where(shown[:, None], own.center, 0), shown)


def perturbed(shown: Prototypes, key: jax.Array, sigma: float) -> Prototypes:
    """With N(0, sigma^2) on every number."""
    noise = sigma * jax.random.normal(key, shown.center.shape)
    return shown._replace(center=shown.center + jnp.where(shown.is_there[:, None], noise, 0))


def chosen(
    key: jax.Array,
    client_id: jax.Array,
    shown: Prototypes,
    num_helpers: int,
    age: jax.Array | None = None,
) -> Prototypes:
    """H of the clients that show anything, at random: [H, C, D], empty where there are fewer; see `drawn`."""
    rows, is_one = drawn(key, client_id, shown.is_there, num_helpers, age)
    center = jnp.where(is_one[:, None, None], shown.center[rows], 0)
    return Prototypes(center, shown.is_there[rows] & is_one[:, None])


def drawn(
    key: jax.Array,
    client_id: jax.Array,
    is_there: jax.Array,
    num_helpers: int,
    age: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Rows int32 [H] of the clients that are to help, and where there is one, bool [H].

    With an `age` of their prototypes, int32 [K] from 0 on, the youngest are first.
    """
    can_help = (client_id >= 0) & jnp.any(is_there, axis=-1)
    age = jnp.zeros(client_id.shape, jnp.int32) if age is None else age
    draws = client_draws(key, client_id)
    order = jnp.lexsort((draws, jnp.where(can_help, age, jnp.iinfo(jnp.int32).max)))
    rows = order[jnp.minimum(jnp.arange(num_helpers), len(order) - 1)]
    return rows, jnp.arange(num_helpers) < jnp.sum(can_help)


def of_the_last_round(store: Store) -> Prototypes:
    """The prototypes of its clients."""
    newest = np.asarray(store.round)
    rows = np.flatnonzero(newest == newest.max()) if newest.any() else np.zeros(1, int)
    return jax.tree.map(lambda leaf: leaf[rows], store.latest)


def by_prototypes(
    model: Model,
    distance: Distance,
    known: Callable[[Any], Prototypes] = of_the_last_round,
    *,
    complete: bool = False,
) -> Judge:
    """By the mean of p over what is `known` of clients' prototypes; uniform before there are any.

    If `complete`, those are `completed` first. A client's upload by the prototypes that it showed or, where
    the server has none of it, by the mean.
    """

    def needed(state: ServerState) -> tuple[nnx.State, Prototypes]:
        return state.model, known(state.memory)

    def probabilities(needed: tuple[nnx.State, Prototypes], x: jax.Array) -> jax.Array:
        state, prototypes = needed
        embedding = model.features(state, x).astype(jnp.float32)
        prototypes = completed(prototypes) if complete else prototypes
        mean = mean_probabilities(embedding, prototypes, distance)
        return jnp.where(jnp.any(prototypes.is_there), mean, 1 / mean.shape[-1])

    def of_client(state: ServerState, sent: nnx.State, client: int) -> tuple[nnx.State, Prototypes]:
        if not isinstance(state.memory, Store):
            return sent, known(state.memory)
        rows = np.asarray([client])
        return sent, jax.tree.map(lambda leaf: leaf[rows], state.memory.latest)

    return Judge(needed, probabilities, of_client)
