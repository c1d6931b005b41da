"""Mean prototypes of the helpers, by plaintext or masked sums: one mean in place of H sets of prototypes.

    c_k = 1 / n_k sum_{j in H, j shows k} c_jk,     n_k >= 2 the helpers that show class k

(B.1 of ProtoFSSL divides by |M_r|, however many of the helpers have the class; a sum over fewer helpers would
then be a point nearer to 0.) A class that only one helper shows has no mean: it would be that client's own
prototype. Only helpers send anything, in rounds in which helpers are renewed; the server stores their mean
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.algorithms.protofssl.prototype_sharing import drawn
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import Communication
from jaxfed.training.consensus.client_sums import in_fresh_session
from jaxfed.training.pseudo_labels.prototypes import (
    Prototypes,
    embedding_size,
    message_bytes,
    nothing_shown,
)
from jaxfed.training.round.server_hooks import UploadStore

if TYPE_CHECKING:
    from jaxfed.models import Model

_LEAST = 2  # helpers that show a class


class MeanStore(NamedTuple):
    """The server's store: the mean prototypes of the current helpers.

    Fields:
        helpers: the mean of this round's helpers, stacked as if it were one helper's: [1, C, D].
    """

    helpers: Prototypes


def mean_store(
    model: Model, num_classes: int, num_helpers: int, interval: int, sums: str
) -> UploadStore:
    """The store as the server's memory; helpers are drawn after rounds 1, 1 + R_H, 1 + 2 R_H, ...

    `sums` is a key of `SUMS`. A helper sends its summand and nothing else.
    """
    means_of = SUMS[sums]
    draw = jax.jit(partial(drawn, num_helpers=num_helpers))

    def init(state: nnx.State, federation: Federation) -> MeanStore:
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
