"""Sharing of prototypes between clients: the server's store, the choice of helpers, and classification.

The server stores every client's newest prototypes. Up to H clients of a round, drawn at random, help those of
the next round. With an interval R_H they help for R_H rounds, with their prototypes of that time.
Alternatively the clients with the newest prototypes help, those of earlier rounds included if a round has
fewer than H.

If only the helpers' mean is shared, by plaintext or masked sums, the server stores one mean in place of H
sets of prototypes:

    c_k = 1 / n_k sum_{j in H, j shows k} c_jk,     n_k >= 2 the helpers that show class k

(B.1 of ProtoFSSL divides by |M_r|, however many of the helpers have the class; a sum over fewer helpers would
then be a point nearer to 0.) A class that only one helper shows has no mean: it would be that client's own
prototype. Only helpers send anything then, in rounds in which helpers are renewed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.settings import HERE, Execution
from jaxfed.training.consensus.client_sums import in_fresh_session
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.pseudo_labels.prototypes import (
    Distance,
    Prototypes,
    class_means,
    completed,
    embedding_size,
    mean_probabilities,
    message_bytes,
    nothing_shown,
)
from jaxfed.training.round.server_hooks import Classifier, UploadStore
from jaxfed.training.server.client_rows import (
    gather,
    has_tables,
    rows_for,
    scatter,
    stacked_for,
    took_part,
)
from jaxfed.training.server.server_state import ServerState, client_draws

if TYPE_CHECKING:
    from jaxfed.models import Model

HelperChoice = Literal["previous_round", "newest"]
_LEAST = 2  # helpers that show a class of a mean


class Store(NamedTuple):
    """The server's store: the prototypes of the current helpers and of all clients.

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
    host: Execution = HERE,
) -> UploadStore:
    """The store as the server's memory; helpers are chosen after rounds 1, 1 + R_H, 1 + 2 R_H, ..."""

    def init(state: nnx.State, federation: Federation, key: jax.Array) -> Store:
        del key
        dim, clients = embedding_size(model, state, federation), federation.num_clients
        nothing = jax.tree.map(lambda leaf: leaf[0], nothing_shown(1, num_classes, dim))
        latest, newest = rows_for(clients, (nothing, jnp.int32(0)), host)
        return Store(nothing_shown(min(num_helpers, clients), num_classes, dim), latest, newest)

    def renewed(
        helpers: Prototypes,
        client_id: jax.Array,
        shown: Prototypes,
        rounds: jax.Array,
        key: jax.Array,
        age: jax.Array | None = None,
    ) -> Prototypes:
        found = chosen(key, client_id, shown, len(helpers.is_there), age)
        is_due = (rounds - 1) % interval == 0
        return jax.tree.map(lambda new, old: jnp.where(is_due, new, old), found, helpers)

    @jax.jit
    def updated(
        store: Store, client_id: jax.Array, shown: Prototypes, rounds: jax.Array, key: jax.Array
    ) -> Store:
        when = jnp.full(client_id.shape, rounds)
        latest, newest = scatter((store.latest, store.round), client_id, (shown, when))
        if choice == "previous_round":
            helpers = renewed(store.helpers, client_id, shown, rounds, key)
        else:
            everyone = jnp.arange(len(newest))
            helpers = renewed(store.helpers, everyone, latest, rounds, key, rounds - newest)
        return Store(helpers, latest, newest)

    chosen_anew = jax.jit(renewed)

    def update(
        store: Store,
        client_id: jax.Array,
        shown: Prototypes,
        rounds: jax.Array,
        key: jax.Array,
        communication: Communication,
    ) -> Store:
        del communication  # clients have counted their own messages
        if not has_tables(store):
            return updated(store, client_id, shown, rounds, key)
        when = np.full(len(client_id), rounds)
        latest, newest = scatter((store.latest, store.round), client_id, (shown, when))
        age = None
        if choice == "newest":
            most = len(store.helpers.is_there)
            ids = newest_clients(latest.is_there, newest, most, len(client_id))
            shown, age = gather(latest, ids), rounds - gather(newest, ids)
            client_id = jnp.asarray(ids)
        return Store(chosen_anew(store.helpers, client_id, shown, rounds, key, age), latest, newest)

    return UploadStore(init, update)


def newest_clients(is_there: Any, newest: Any, num_helpers: int, cohort_size: int) -> np.ndarray:
    """Return the clients among which the newest H helpers are, int32 [H + K]; -1 in the other places.

    These are all clients with prototypes as new as those of the H-th newest one: fewer than H newer ones, and
    some of one round's K.

    Args:
        is_there: bool [M, C], the prototypes of clients.
        newest: int32 [M], their rounds.
        num_helpers: H.
        cohort_size: K.
    """
    ids = took_part(newest)
    ids = ids[np.asarray(gather(is_there, ids)).any(axis=1)]
    when = np.asarray(gather(newest, ids))
    if len(ids) > num_helpers:
        ids = ids[when >= np.partition(when, -num_helpers)[-num_helpers]]
    found = np.full(num_helpers + cohort_size, -1, np.int32)
    found[: len(ids)] = ids
    return found


def helpers_sent(state: ServerState, cohort: Cohort, communication: Communication) -> Prototypes:
    """Send each client of the cohort the same helpers, [K, H, C, D]; existing prototypes count as bytes."""
    helpers: Prototypes = state.memory.helpers
    num_clients = int(np.sum(np.asarray(cohort.client_id) >= 0))
    num_bytes = int(np.sum(message_bytes(helpers)))
    communication.down("prototypes", num_clients * num_bytes)
    return stacked_for(len(cohort.client_id), helpers)


def client_prototypes(
    model: Model, state: nnx.State, data: ClientData, max_labels: int, num_classes: int, clip: float
) -> Prototypes:
    """Return the prototypes of a client's labels.

    Labeled examples are a client's first ones, `max_labels` at most; with 0 all its rows are read. With a
    clip B above 0 each embedding z counts as z min(1, B / |z|).
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
    """Drop the prototypes of classes with fewer than `min_labels` labels."""
    num_classes = len(own.is_there)
    is_labeled = data.is_labeled & data.mask
    count = jnp.sum(
        jnp.where(is_labeled[:, None], jax.nn.one_hot(data.label, num_classes), 0), axis=0
    )
    shown = own.is_there & (count >= min_labels)
    return Prototypes(jnp.where(shown[:, None], own.center, 0), shown)


def perturbed(shown: Prototypes, key: jax.Array, sigma: float) -> Prototypes:
    """Add N(0, sigma^2) to every number of the prototypes."""
    noise = sigma * jax.random.normal(key, shown.center.shape)
    return shown._replace(center=shown.center + jnp.where(shown.is_there[:, None], noise, 0))


def chosen(
    key: jax.Array,
    client_id: jax.Array,
    shown: Prototypes,
    num_helpers: int,
    age: jax.Array | None = None,
) -> Prototypes:
    """Draw H of the clients that show any prototype: [H, C, D], empty if there are fewer; see `drawn`."""
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
    """Draw the rows int32 [H] of the helping clients, and bool [H], False in slots without a client.

    With an `age` of their prototypes, int32 [K] from 0 on, the newest come first.
    """
    can_help = (client_id >= 0) & jnp.any(is_there, axis=-1)
    age = jnp.zeros(client_id.shape, jnp.int32) if age is None else age
    draws = client_draws(key, client_id)
    order = jnp.lexsort((draws, jnp.where(can_help, age, jnp.iinfo(jnp.int32).max)))
    rows = order[jnp.minimum(jnp.arange(num_helpers), len(order) - 1)]
    return rows, jnp.arange(num_helpers) < jnp.sum(can_help)


def of_the_last_round(store: Store) -> Prototypes:
    """Return the prototypes of the last round's clients."""
    ids = took_part(store.round)
    newest = np.asarray(gather(store.round, ids))
    rows = ids[newest == newest.max()] if newest.any() else np.zeros(1, int)
    return jax.tree.map(lambda leaf: leaf[rows], store.latest)


def by_prototypes(
    model: Model,
    distance: Distance,
    known: Callable[[Any], Prototypes] = of_the_last_round,
    *,
    complete: bool = False,
) -> Classifier:
    """Return the classifier by the mean of p over the `known` prototypes; uniform before there are any.

    If `complete`, prototypes are `completed` first. A single client's upload is classified by the prototypes
    that it showed or, if the server stores none per client, by the mean.
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

    return Classifier(needed, probabilities, of_client)


class MeanStore(NamedTuple):
    """The server's store: the mean prototypes of the current helpers.

    Fields:
        helpers: the mean of this round's helpers, stacked as if it were one helper's: [1, C, D].
    """

    helpers: Prototypes


def mean_store(
    model: Model, num_classes: int, num_helpers: int, interval: int, sums: str
) -> UploadStore:
    """The store; helpers are drawn after rounds 1, 1 + R_H, 1 + 2 R_H, ...

    `sums` is a key of `SUMS`. A helper sends its summand and nothing else.
    """
    means_of = SUMS[sums]
    draw = jax.jit(partial(drawn, num_helpers=num_helpers))

    def init(state: nnx.State, federation: Federation, key: jax.Array) -> MeanStore:
        del key
        dim = embedding_size(model, state, federation)
        return MeanStore(nothing_shown(1, num_classes, dim))

    def update(
        store: MeanStore,
        client_id: jax.Array,
        shown: Prototypes,
        rounds: jax.Array,
        key: jax.Array,
        communication: Communication,
    ) -> MeanStore:
        if (int(rounds) - 1) % interval:
            return store
        rows, is_one = map(np.asarray, draw(key, client_id, shown.is_there))
        helpers = Prototypes(*(np.asarray(leaf)[rows[is_one]] for leaf in shown))
        center, count = means_of(helpers, communication)
        mean = jnp.asarray(center, jnp.float32)[None], jnp.asarray(count > 0)[None]
        return MeanStore(Prototypes(*mean))

    return UploadStore(init, update)


def plaintext_means(
    helpers: Prototypes, communication: Communication
) -> tuple[np.ndarray, np.ndarray]:
    """Means float64 [C, D] and n_k int [C], 0 if too few show a class; the server sees all prototypes."""
    communication.up("prototypes", int(np.sum(message_bytes(helpers))))
    count = np.sum(helpers.is_there, axis=0)
    count = np.where(count >= _LEAST, count, 0)
    total = np.sum(
        helpers.center,
        axis=0,
        where=helpers.is_there[..., None] & (count > 0)[:, None],
        dtype=float,
    )
    return total / np.maximum(count, 1)[:, None], count


def secure_means(
    helpers: Prototypes, communication: Communication, *, is_resilient: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The same by `jaxfed.secure.class_means`, in a fresh session."""
    from jaxfed.secure.class_means import Shown, class_means

    if len(helpers.center) < _LEAST:
        return plaintext_means(Prototypes(*(leaf[:0] for leaf in helpers)), communication)
    shown = list(map(Shown, *map(np.asarray, helpers)))
    means = in_fresh_session(
        class_means, shown, communication, least=_LEAST, is_resilient=is_resilient
    )
    return means.center, means.contributors


SUMS: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "plaintext": plaintext_means,
    "masked": partial(secure_means, is_resilient=False),
    "masked_resilient": partial(secure_means, is_resilient=True),
}


def the_mean(store: MeanStore) -> Prototypes:
    """Return the mean of the helpers' prototypes, [1, C, D]."""
    return store.helpers
