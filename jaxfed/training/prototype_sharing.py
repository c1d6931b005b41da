"""Prototypes between clients: who shows which, who helps whom, and how a state classifies by them.

The server keeps every client's newest prototypes. Of the clients of a round up to H, drawn at random, help
those of the next; with an interval R_H they help for so many rounds, by the prototypes that they had then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.training.local_update import ClientData
from jaxfed.training.prototypes import Distance, Prototypes, class_means, mean_probabilities
from jaxfed.training.server_roles import Judge, Memory
from jaxfed.training.server_state import ServerState, scatter, stacked_for

if TYPE_CHECKING:
    from jaxfed.models import Model


class Store(NamedTuple):
    """What the server keeps.

    Fields:
        helpers: prototypes [H, C, D] of the clients that help in this round.
        latest: every client's newest, [M, C, D].
        round: int32 [M], the round they are of; 0 for none.
    """

    helpers: Prototypes
    latest: Prototypes
    round: jax.Array


def prototype_store(model: Model, num_classes: int, num_helpers: int, interval: int) -> Memory:
    """The store as the server's memory; helpers are chosen after rounds 1, 1 + R_H, 1 + 2 R_H, ..."""

    def init(state: nnx.State, federation: Federation) -> Store:
        example = jax.ShapeDtypeStruct((1, *federation.x.shape[1:]), federation.x.dtype)
        dim = jax.eval_shape(model.features, state, example).shape[-1]

        def nothing(number: int) -> Prototypes:
            center = jnp.zeros((number, num_classes, dim))
            return Prototypes(center, jnp.zeros((number, num_classes), bool))

        clients = federation.num_clients
        return Store(nothing(num_helpers), nothing(clients), jnp.zeros(clients, jnp.int32))

    def update(
        store: Store, client_id: jax.Array, shown: Prototypes, rounds: jax.Array, key: jax.Array
    ) -> Store:
        when = jnp.full(client_id.shape, rounds)
        latest, newest = scatter((store.latest, store.round), client_id, (shown, when))
        renewed = chosen(key, client_id, shown, num_helpers)
        is_due = (rounds - 1) % interval == 0
        helpers = jax.tree.map(lambda new, old: jnp.where(is_due, new, old), renewed, store.helpers)
        return Store(helpers, latest, newest)

    return Memory(init, update)


def helpers_sent(state: ServerState, cohort: Cohort, communication: Communication) -> Prototypes:
    """The same helpers for each client of the cohort, [K, H, C, D]; what there is of them counts."""
    helpers: Prototypes = state.memory.helpers
    num_clients = int(np.sum(np.asarray(cohort.client_id) >= 0))
    num_bytes = 4 * helpers.center.shape[-1] * int(np.sum(np.asarray(helpers.is_there)))
    communication.down("prototypes", num_clients * num_bytes)
    return stacked_for(len(cohort.client_id), helpers)


def client_prototypes(
    model: Model, state: nnx.State, data: ClientData, max_labels: int, num_classes: int, clip: float
) -> Prototypes:
    """Of all labels that the client has, which are its first examples, `max_labels` at most.

    With a clip B above 0 each embedding z counts as z min(1, B / |z|).
    """
    rows = slice(0, max_labels)
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


def chosen(key: jax.Array, client_id: jax.Array, shown: Prototypes, num_helpers: int) -> Prototypes:
    """H of the cohort's clients that show anything, at random: [H, C, D], empty where there are fewer."""
    can_help = (client_id >= 0) & jnp.any(shown.is_there, axis=-1)
    # By the client's own number, so that neither order nor padding has a say.
    draws = jax.vmap(lambda c: jax.random.uniform(jax.random.fold_in(key, c)))(
        jnp.maximum(client_id, 0)
    )
    order = jnp.argsort(jnp.where(can_help, draws, jnp.inf))
    rows = order[jnp.minimum(jnp.arange(num_helpers), len(order) - 1)]
    is_one = jnp.arange(num_helpers) < jnp.sum(can_help)
    center = jnp.where(is_one[:, None, None], shown.center[rows], 0)
    return Prototypes(center, shown.is_there[rows] & is_one[:, None])


def by_prototypes(model: Model, distance: Distance) -> Judge:
    """By the mean of p over the prototypes of the last round's clients; uniform before there are any."""

    def needed(state: ServerState) -> tuple[nnx.State, Prototypes]:
        store = state.memory
        newest = np.asarray(store.round)
        rows = np.flatnonzero(newest == newest.max()) if newest.any() else np.zeros(1, int)
        return state.model, jax.tree.map(lambda leaf: leaf[rows], store.latest)

    def probabilities(needed: tuple[nnx.State, Prototypes], x: jax.Array) -> jax.Array:
        state, prototypes = needed
        embedding = model.features(state, x).astype(jnp.float32)
        mean = mean_probabilities(embedding, prototypes, distance)
        return jnp.where(jnp.any(prototypes.is_there), mean, 1 / mean.shape[-1])

    return Judge(needed, probabilities)
