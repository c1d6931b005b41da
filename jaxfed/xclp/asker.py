"""A membership-inference attacker that joins the labeling as an extra client.

It takes part with the examples under attack as unlabeled points of its own. It observes its rows of Z, or
only the labels of line 15. If an example is a labeled point of another client, that identical point is its
nearest neighbor, and its label dominates the scores. This reveals membership.

    seen       shares Z_xc / sum_c' Z_xc' of the cohort's labels;  labels argmax_c Z_xc
    shadows    the same from labelings that the attacker simulates

Shadows are the method itself, on one graph: the cohort's unlabeled points, every candidate member as a point
of some client, and the attacker's own points. Shadows differ only in which candidates are labeled, and all of
them are solved as one system (`jaxfed.xclp.relabeling`). This attacker has more than a client receives: the
cohort's graph, which the server has, except for the points whose membership is in question. One difference
from the run remains: an example that no client has is an unlabeled point in the shadows without it, and no
point in the run.

Together with the server, this client also has the Hamming distances between its points and everybody's. The
server has them with every protocol of `hamming`, whatever `row_sums` and `projection` are, because the client
computes its codes with the same hyperplanes as the others:

    seen       - min over all other clients' points of the Hamming distance

A copy has distance 0. With `bit_epsilon` both codes are randomized first, and a copy is only closer than the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.exposure import CLIENT, COALITION, View
from jaxfed.xclp.transduction import as_vectors

_OF_ALL = np.asarray([-1], np.int32)

# Vectors of the extra client [n, d] -> its rows of Z, [n, C].
Ask = Callable[[np.ndarray], np.ndarray]
# Vectors, one array per client; labelings int [S, n'] of the first points; queried rows [n] -> Z, [S, n, C].
Relabeled = Callable[[Sequence[np.ndarray], np.ndarray, slice], np.ndarray]


def views_of_asker(ask: Ask, relabeled: Relabeled, unlabeled: Sequence[np.ndarray]) -> list[View]:
    """Views of an extra client: the scores of its points, and their labels alone.

    Args:
        ask: the labeling.
        relabeled: simulated labelings, on graphs like that of the run.
        unlabeled: the cohort's points without labels, [n_j, d] a client.
    """

    def told(x: np.ndarray) -> np.ndarray:
        return _shares(ask(as_vectors(x)))[None]

    def marks(x: np.ndarray) -> np.ndarray:
        shares = remembered(x)
        is_largest = shares.argmax(axis=-1)[..., None] == np.arange(shares.shape[-1])
        return is_largest & (shares > 0)

    def shadows(x: np.ndarray, y: np.ndarray, is_in: np.ndarray) -> np.ndarray:
        points, first = as_vectors(x), sum(map(len, unlabeled))
        number = is_in.shape[1]
        labels = np.full((len(is_in), first + number), UNLABELED, np.int32)
        labels[:, first:] = np.where(is_in, y[:number], UNLABELED)
        asked = slice(first + number, first + number + len(x))
        return _shares(relabeled([*unlabeled, points[:number], points], labels, asked))

    remembered, played = _remembering(told), _remembering(shadows)
    return [
        View("scores", "probabilities", _OF_ALL, remembered, shadows=played, adversary=CLIENT),
        View("labels", "labels", _OF_ALL, marks, shadows=played, adversary=CLIENT),
    ]


def view_of_coalition(codes: Callable[[np.ndarray], Sequence[np.ndarray]]) -> View:
    """View of the server and one client together: the distance to the nearest point of another client.

    Args:
        codes: the asking client's vectors -> packed codes of all clients, its own last, uint32 [n_j, L / 32].
    """

    def nearest(x: np.ndarray) -> np.ndarray:
        *others, own = map(np.asarray, codes(as_vectors(x)))
        there = np.concatenate(others)
        least = [np.bitwise_count(there ^ row).sum(axis=1, dtype=np.int64).min() for row in own]
        return np.asarray(least, np.float32)[None, :, None]

    return View("distances", "distances", _OF_ALL, nearest, adversary=COALITION)


def _shares(scores: np.ndarray) -> np.ndarray:
    """Positive scores of every point divided by their sum; zeros for a point without any."""
    positive = np.maximum(scores, 0)
    total = positive.sum(axis=-1, keepdims=True)
    return positive / np.where(total > 0, total, 1)


def _remembering(answer: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Cache the last answer, for calls with the very same arrays."""
    last: list[tuple[tuple[Any, ...], np.ndarray]] = []

    def remembered(*asked: Any) -> np.ndarray:
        if not last or any(one is not other for one, other in zip(asked, last[0][0], strict=True)):
            last[:] = [(asked, answer(*asked))]
        return last[0][1]

    return remembered
