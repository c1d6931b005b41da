"""The clients of one round, as a method sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.federation.ragged import Ragged

Array = jax.Array | np.ndarray


class Cohort(NamedTuple):
    """The sampled clients of one round, stacked and padded to the largest of them.

    Padding (rows with `mask` False) and the order of clients never change a result, except for how sums over
    all points of a cohort are rounded, such as those of XCLP's scores.

    Fields:
        client_id: int32 [K], the client of each row; -1 for a row without one. If a server that has labels
            takes part in a labeling, its examples are rows with numbers below -1.
        x: [K, N, ...], the clients' examples; a client's n_k examples are its first n_k rows. With very
            unequal client sizes a `Ragged`, which represents that array.
        y: int32 [K, N], class labels; -1 where the example is unlabeled or padding.
        mask: bool [K, N], True on examples, False on padding.
    """

    client_id: Array
    x: Array | Ragged
    y: Array
    mask: Array


def padded(cohort: Cohort, multiple: int) -> Cohort:
    """Pad the cohort with empty clients (id -1) to a multiple of clients."""
    missing = -len(cohort.client_id) % multiple
    if not missing:
        return cohort

    def pad(array: Array, fill: int) -> np.ndarray:
        return np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])

    x = cohort.x
    return Cohort(
        client_id=pad(cohort.client_id, -1),
        x=x.with_empty(missing) if isinstance(x, Ragged) else pad(x, 0),
        y=pad(cohort.y, UNLABELED),
        mask=pad(cohort.mask, False),
    )


def emptied(cohort: Cohort, is_there: np.ndarray) -> Cohort:
    """Replace clients by empty ones (id -1) where bool [K] is False, in arrays of the same shapes."""
    if is_there.all():
        return cohort

    def only(array: Array, fill: int) -> np.ndarray:
        return np.where(is_there.reshape(-1, *(1,) * (array.ndim - 1)), array, fill)

    x = cohort.x
    return Cohort(
        client_id=only(cohort.client_id, -1),
        x=replace(x, size=only(x.size, 0)) if isinstance(x, Ragged) else only(x, 0),
        y=only(cohort.y, UNLABELED),
        mask=only(cohort.mask, False),
    )


def without_labels(cohort: Cohort) -> Cohort:
    """The cohort without any labels."""
    return cohort._replace(y=np.full_like(np.asarray(cohort.y), UNLABELED))


def chosen(cohort: Cohort, places: np.ndarray) -> Cohort:
    """Select the cohort's clients at these places, in this order; on the host."""
    x = cohort.x
    ids, y, mask = (np.asarray(part)[places] for part in (cohort.client_id, cohort.y, cohort.mask))
    return Cohort(ids, x.of(places) if isinstance(x, Ragged) else np.asarray(x)[places], y, mask)


def arranged(cohort: Cohort, multiple: int = 1) -> Cohort:
    """Sort the cohort by ascending ids, and pad it with empty clients (id -1), last, to a multiple.

    Sums and ties between equal distances depend on the order, so it is always the same.
    """
    ids = np.asarray(cohort.client_id)
    order = np.argsort(np.where(ids < 0, np.iinfo(np.int32).max, ids), kind="stable")
    if (order != np.arange(len(ids))).any():
        cohort = chosen(cohort, order)
    return padded(cohort, multiple)
