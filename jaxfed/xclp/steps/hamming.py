"""Lines 5 and 7 of Algorithm 1: each point's nearest others, from codes in the clear or by a protocol.

Protocols need a session. They are imported where they run, because only they need their packages.

All p (p - 1) / 2 pairs are the cost of SecureHamming among many clients. With `compared_clients` = h a client
is compared with itself and with h others at most, so p h / 2 pairs are left. `compared_by` chooses them:

    "random"      h others, drawn from the run's seed
    "neighbors"   h / 2 others drawn, then at most h / 2 that the server chooses: pairs with the most points
                  near a common point, by the distances found so far (neighbors of neighbors)

The draw is a circulant graph on a random permutation: positions i and i + s of a ring are joined, for s = 1,
which makes it connected, and h / 2 - 1 other random s. With s = 1, ..., h / 2 labels would spread slowly, and
neighbors of neighbors would mostly be neighbors.

The server takes pairs by (most common points, first, second) while both clients have fewer than h others. All
numbers are exact integers, so protocols and plaintext choose the same pairs from the same codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from jaxfed.federation.execution import Execution
from jaxfed.kernels import knn
from jaxfed.kernels.devices import everywhere, in_batches, padded_rows
from jaxfed.kernels.distances import no_distance
from jaxfed.random_streams import Stream
from jaxfed.xclp.settings.parameters import Neighbors
from jaxfed.xclp.steps.codes import rows_of

if TYPE_CHECKING:
    from jaxfed.secure.cross_steps import ChoosePairs
    from jaxfed.secure.hamming.matrix import Pair
    from jaxfed.secure.session.parties import Session


def pair_choices(size: int, by: str, seed: int) -> list[ChoosePairs]:
    """The turns that choose the pairs of one labeling: `size` = h others a client, `by` as in `compared_by`.

    Each turn is called after the pairs of the last one have been compared.
    """
    compared: set[Pair] = set()

    def draw(sizes: Mapping[int, int], indices: np.ndarray) -> list[Pair]:
        nonlocal compared
        del indices
        clients = [client for client, number in sizes.items() if number]
        is_all = size >= len(clients) - 1
        others = size if is_all or by == "random" else size // 2
        rng = np.random.default_rng((Stream.COMPARED_CLIENTS, seed))
        pairs = drawn_pairs(clients, others, rng)
        compared = set(pairs)
        return pairs

    def choose(sizes: Mapping[int, int], indices: np.ndarray) -> list[Pair]:
        return chosen_pairs(sizes, indices, compared, size)

    return [draw, choose] if by == "neighbors" else [draw]


def drawn_pairs(clients: list[int], size: int, rng: np.random.Generator) -> list[Pair]:
    """Pairs (lower, higher), sorted, of a connected random graph; each client has `size` others, even."""
    p = len(clients)
    ring = np.arange(p)
    if size >= p - 1:
        ends = np.triu_indices(p, 1)
    else:
        ring = rng.permutation(p)
        steps = np.append(1, 2 + rng.permutation((p - 1) // 2 - 1)[: size // 2 - 1])
        ends = np.repeat(np.arange(p), len(steps)), (np.arange(p)[:, None] + steps).ravel() % p
    pairs = np.sort(np.asarray(clients)[ring[np.stack(ends, axis=1)]], axis=1)
    return sorted(map(tuple, pairs.tolist()))


def chosen_pairs(
    sizes: Mapping[int, int], indices: np.ndarray, compared: set[Pair], most: int
) -> list[Pair]:
    """Pairs (lower, higher), sorted, with the most points near a common point, `most` = h others a client.

    Args:
        sizes: numbers of points of the clients that take part, in the order of `indices`.
        indices: nearest points so far, int [n, k], -1 where there is none.
        compared: pairs that are not chosen again; they count as others of their clients.

    Cost: about n k^2 operations and bytes, and one step of a loop for each pair with a common point.
    """
    from scipy import sparse  # only this choice needs it

    clients, n = np.array(list(sizes)), len(indices)
    owner = np.repeat(np.arange(len(clients)), list(sizes.values()))
    point, slot = np.nonzero(indices >= 0)
    other = indices[point, slot]
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


LATER_BATCH = 256  # points whose distances to all of the graph are held at a time
COMPARED_BATCH = 64  # the same of one client's points, to its partners'


def plaintext_hamming(
    codes: Sequence[np.ndarray],
    session: Session | None,
    execution: Execution,
    *,
    num_neighbors: int,
    key_bits: int,
    choices: Sequence[ChoosePairs] = (),
) -> Neighbors:
    """Lines 5 and 7 with codes in the clear, as in the authors' experiments: each point's k nearest others.

    `choices`: turns that choose the pairs of clients to compare; all if left out. The search among chosen
    pairs runs on one device of each process.
    """
    del session, key_bits
    if choices:
        return list(range(len(codes))), *execution.once(
            _among_chosen, codes, num_neighbors, choices
        )
    joint = np.concatenate(codes)
    bits = padded_rows(joint)
    is_point = np.arange(len(bits)) < len(joint)
    valid = execution.spread(is_point, fill=False)
    neighbors = execution.once(knn.hamming_knn, execution.spread(bits), num_neighbors, valid=valid)
    indices, distances = (np.asarray(values)[: len(joint)] for values in everywhere(neighbors))
    return list(range(len(codes))), indices, distances


def _among_chosen(
    codes: Sequence[np.ndarray], num_neighbors: int, choices: Sequence[ChoosePairs]
) -> tuple[np.ndarray, np.ndarray]:
    """Nearest others among the pairs that all turns choose, each of which is searched once."""
    sizes = {j: len(points) for j, points in enumerate(codes)}
    choose, *later = choices
    neighbors = among_pairs(codes, choose(sizes, np.zeros((0, 0), np.int32)), num_neighbors)
    for choose in later:
        pairs = choose(sizes, neighbors[0])
        neighbors = _nearer(neighbors, among_pairs(codes, pairs, num_neighbors, has_own=False))
    return neighbors


def _nearer(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The k first by (distance, index) of both (indices, distances) [n, k], which have no point in common."""
    indices, distances = (
        np.concatenate(parts, axis=1) for parts in zip(first, second, strict=True)
    )
    order = np.lexsort((indices, distances), axis=1)[:, : first[0].shape[1]]
    return np.take_along_axis(indices, order, 1), np.take_along_axis(distances, order, 1)


def among_pairs(
    codes: Sequence[np.ndarray], pairs: Sequence[Pair], num_neighbors: int, *, has_own: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Each point's k nearest others of the clients that form a pair with its own; `has_own`: and of its own.

    Returns (indices, distances), int32 [n, k], in the format of `jaxfed.kernels.knn.hamming_knn`.
    """
    rows = rows_of(codes)
    partners = [{j} if has_own else set[int]() for j in range(len(codes))]
    for j, k in pairs:
        partners[j].add(k)
        partners[k].add(j)
    missing = int(no_distance(codes[0].shape[1]))
    parts = []
    for client_codes, client_rows, among in zip(codes, rows, partners, strict=True):
        if not among:
            shape = len(client_codes), num_neighbors
            parts.append([np.full(shape, fill, np.int32) for fill in (-1, missing)])
            continue
        clients = sorted(among)
        bits = padded_rows(np.concatenate([codes[j] for j in clients]))
        numbers = np.concatenate([np.arange(rows[j].start, rows[j].stop) for j in clients])
        is_point = jnp.asarray(np.arange(len(bits)) < len(numbers))
        search = partial(
            knn.hamming_knn_among,
            bits=jnp.asarray(bits),
            num_neighbors=num_neighbors + 1,
            valid=is_point,
        )
        indices, distances = in_batches(search, client_codes, COMPARED_BATCH)
        indices = np.append(numbers, -1)[indices].astype(np.int32)
        # Without the point itself; if k + 1 equal codes come before it, without the last of them.
        is_itself = indices == np.arange(client_rows.start, client_rows.stop)[:, None]
        left_out = np.where(is_itself.any(axis=1), is_itself.argmax(axis=1), num_neighbors)
        columns = np.arange(num_neighbors)
        columns = columns + (columns >= left_out[:, None])
        parts.append([np.take_along_axis(part, columns, 1) for part in (indices, distances)])
    indices, distances = map(np.concatenate, zip(*parts, strict=True))
    return indices, distances


def secure_hamming(
    codes: Sequence[np.ndarray],
    session: Session | None,
    execution: Execution,
    *,
    protocol: str,
    num_neighbors: int,
    key_bits: int,
    choices: Sequence[ChoosePairs] = (),
) -> Neighbors:
    """Lines 5 and 7 by a protocol in which the server learns H and no party learns anything else."""
    from jaxfed.secure import cross_steps
    from jaxfed.secure.hamming import protocols

    assert session is not None
    return cross_steps.nearest_others(
        session,
        dict(enumerate(codes)),
        num_neighbors,
        getattr(protocols, protocol),
        key_bits=key_bits,
        choices=choices,
        progress=execution.counting("pairs of points"),
    )


def nearest_in_graph(
    later: Sequence[np.ndarray], graph: Sequence[np.ndarray], num_neighbors: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lines 5 and 7 for points that come after the graph, with codes in the clear.

    Returns (indices, distances), int32 [m, k]. Points are numbered consecutively, client after client.
    """
    codes, joint = np.concatenate(later), np.concatenate(graph)
    bits = padded_rows(joint)
    is_point = jnp.asarray(np.arange(len(bits)) < len(joint))
    most = min(num_neighbors, len(joint))  # further columns would be empty
    search = partial(knn.hamming_knn_among, bits=jnp.asarray(bits), num_neighbors=most)
    return in_batches(lambda some: search(jnp.asarray(some), valid=is_point), codes, LATER_BATCH)
