"""Pairs of clients whose points line 5 compares, if not all of them: `compared_clients` of `Parameters`.

All p (p - 1) / 2 pairs are the cost of SecureHamming among many clients. With `compared_clients` = h a client
is compared with itself and with h others at most, so p h / 2 pairs are left. `compared_by` chooses them:

    "random"      h others, drawn from the run's seed
    "neighbors"   h / 2 others drawn, then at most h / 2 that the server chooses: pairs with the most points
                  near a common point, by the distances found so far (neighbors of neighbors)

The draw is a circulant graph on a random permutation: places i and i + s of a ring are joined, for s = 1,
which makes it connected, and h / 2 - 1 other random s. With s = 1, ..., h / 2 labels would spread slowly, and
neighbors of neighbors would mostly be neighbors.

The server takes pairs by (most common points, first, second) while both clients have fewer than h others. All
numbers are exact integers, so protocols and plaintext choose the same pairs from the same codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jaxfed.random_streams import Stream

if TYPE_CHECKING:
    from jaxfed.secure.cross_steps import ChoosePairs
    from jaxfed.secure.hamming.matrix import Pair


class ComparedClients:
    """The pairs of one labeling, chosen in one or two turns.

    Args:
        size: h.
        by: "random" or "neighbors".
        seed: of the draw.
    """

    def __init__(self, size: int, by: str, seed: int) -> None:
        self._size, self._by, self._seed = size, by, seed
        self._drawn: set[Pair] = set()

    @property
    def choices(self) -> list[ChoosePairs]:
        """The turns, each to be called after the pairs of the last one have been compared."""
        return [self._draw, self._choose] if self._by == "neighbors" else [self._draw]

    def _draw(self, sizes: Mapping[int, int], indices: np.ndarray) -> list[Pair]:
        """Pairs drawn among the clients that have points; all pairs if h others are all."""
        del indices
        clients = [client for client, size in sizes.items() if size]
        is_all = self._size >= len(clients) - 1
        size = self._size // (1 if is_all else len(self.choices))
        pairs = drawn_pairs(
            clients, size, np.random.default_rng((Stream.COMPARED_CLIENTS, self._seed))
        )
        self._drawn = set(pairs)
        return pairs

    def _choose(self, sizes: Mapping[int, int], indices: np.ndarray) -> list[Pair]:
        """Pairs of neighbors of neighbors, which have not been compared."""
        return chosen_pairs(sizes, indices, self._drawn, self._size)


def drawn_pairs(clients: list[int], size: int, rng: np.random.Generator) -> list[Pair]:
    """Pairs (lower, higher), sorted, of a connected random graph; each client has `size` others, even."""
    p = len(clients)
    places = np.arange(p)
    if size >= p - 1:
        ends = np.triu_indices(p, 1)
    else:
        places = rng.permutation(p)
        steps = np.append(1, 2 + rng.permutation((p - 1) // 2 - 1)[: size // 2 - 1])
        ends = np.repeat(np.arange(p), len(steps)), (np.arange(p)[:, None] + steps).ravel() % p
    found = np.sort(np.asarray(clients)[places[np.stack(ends, axis=1)]], axis=1)
    return sorted(map(tuple, found.tolist()))


def chosen_pairs(
    sizes: Mapping[int, int], indices: np.ndarray, compared: set[Pair], most: int
) -> list[Pair]:
    """Pairs (lower, higher), sorted, with the most points near a common point, `most` others a client.

    Args:
        sizes: numbers of points of the clients that take part, in the order of `indices`.
        indices: nearest points so far, int [n, k], -1 where there is none.
        compared: pairs that are not chosen again; they count as others of their clients.
        most: h.

    Cost: about n k^2 operations and bytes, and one step of a loop for each pair with a common point.
    """
    from scipy import sparse  # only this choice needs it

    clients, n = np.array(list(sizes)), len(indices)
    owner = np.repeat(np.arange(len(clients)), list(sizes.values()))
    point, place = np.nonzero(indices >= 0)
    other = indices[point, place]
    ends = np.concatenate([owner[point], owner[other]]), np.concatenate([other, point])
    near = sparse.csr_array((np.ones(len(ends[0]), np.int64), ends), shape=(len(clients), n))
    common = sparse.triu(near @ near.T, 1, "coo")  # by pair, sum over points of links x links
    first, second = common.coords
    order = np.lexsort((second, first, -common.data))
    others = dict.fromkeys(sizes, 0)
    for pair in compared:
        for client in pair:
            others[client] = others.get(client, 0) + 1
    chosen = []
    for j, k in clients[np.stack([first, second], axis=1)[order]].tolist():
        if others[j] < most and others[k] < most and (j, k) not in compared:
            chosen.append((j, k))
            others[j] += 1
            others[k] += 1
    return sorted(chosen)
