"""Algorithm 1's cross steps by name: in the clear, as the authors' experiments ran them, or as protocols.

There is a table for each of lines 3 (the source of Pi), 5 and 14. The functions of one table take the same
arguments, so a protocol replaces a plaintext step without a change elsewhere. Protocols need a session. They
are imported where they run, because only they need their packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.federation.execution import Execution
from jaxfed.kernels import knn, lsh, nn_descent
from jaxfed.kernels.devices.padding import in_batches, padded_rows
from jaxfed.kernels.devices.spread import everywhere
from jaxfed.kernels.knn_in_parts import hamming_knn_in_parts
from jaxfed.xclp.influence import Contributions

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session

Neighbors = tuple[list[int], np.ndarray, np.ndarray]
Counts = Mapping[int, np.ndarray]

LATER_BATCH = 256  # points whose distances to all of the graph are held at a time


def setup(seed: int) -> jax.Array:
    """Line 1, XS, of a simulation: the seed comes from the experiment and is no secret.

    The key's 64 bits are the seed's lower ones; further words of 32 bits are folded in. (`jax.random.key`
    would leave out all but 32 bits.) A seed below 2^32 gives the key that `jax.random.key` gives.
    """
    low = np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(low), impl="threefry2x32")
    rest = seed >> 64
    while rest:
        key = jax.random.fold_in(key, np.uint32(rest & 0xFFFFFFFF))
        rest >>= 32
    return key


def drawn_seed(key: jax.Array) -> int:
    """A seed for `setup`, drawn with a simulation's key: 64 bits, as many as the key has."""
    low, high = np.asarray(_two_words(key)).tolist()
    return high << 32 | low


@jax.jit
def _two_words(key: jax.Array) -> jax.Array:
    return jax.random.bits(key, (2,))


def projection_of_seed(seed: int, num_bits: int, dim: int, session: Session | None) -> jax.Array:
    """Line 3, CS: Pi, float32 [L, d], the same at all clients and in every run."""
    del session
    return lsh.hyperplanes(setup(seed), num_bits, dim)


def projection_of_group_secret(
    seed: int, num_bits: int, dim: int, session: Session | None
) -> jax.Array:
    """Line 3, CS: Pi, float32 [L, d], the same at all clients and different in every run."""
    from jaxfed.secure import cross_steps

    del seed
    assert session is not None  # `Parameters` has checked it
    return jnp.asarray(cross_steps.hyperplanes(session, num_bits, dim))


def plaintext_hamming(
    codes: Sequence[np.ndarray],
    session: Session | None,
    execution: Execution,
    *,
    num_neighbors: int,
    neighbors: str,
    key_bits: int,
    part_points: int | None = None,
) -> Neighbors:
    """Lines 5 and 7 with codes in the clear: each point's k nearest others by Hamming distance.

    The placeholder of the authors' experiments. Returns the clients that take part, here all of them, and
    (indices, distances), int32 [n, k]. `part_points`: number of points on the device at a time; None: all.
    The approximate search runs on one device of each process.
    """
    del session, key_bits
    joint = np.concatenate(codes)
    if part_points is not None:
        found = execution.once(hamming_knn_in_parts, joint, num_neighbors, part_points=part_points)
        return list(range(len(codes))), *found
    bits = padded_rows(joint)
    is_point = np.arange(len(bits)) < len(joint)
    if neighbors == "exact":
        points = execution.spread(bits), execution.spread(is_point, fill=False)
    else:
        points = jnp.asarray(bits), jnp.asarray(is_point)
    found = execution.once(NEIGHBORS[neighbors], points[0], num_neighbors, valid=points[1])
    indices, distances = (np.asarray(values)[: len(joint)] for values in everywhere(found))
    return list(range(len(codes))), indices, distances


def secure_hamming(
    protocol: str,
    codes: Sequence[np.ndarray],
    session: Session | None,
    execution: Execution,
    *,
    num_neighbors: int,
    neighbors: str,
    key_bits: int,
) -> Neighbors:
    """Lines 5 and 7 by a protocol in which the server learns H and no party learns anything else.

    Returns the clients that have stayed, and (indices, distances) among their points.
    """
    from jaxfed.secure import cross_steps

    assert session is not None
    assert neighbors == "exact"  # all pairs; `Parameters` has checked it
    return cross_steps.nearest_others(
        session,
        dict(enumerate(codes)),
        num_neighbors,
        protocol,
        key_bits=key_bits,
        workers=execution.workers,
        progress=execution.counting("pairs of points"),
    )


def plaintext_in_graph(
    later: Mapping[int, np.ndarray],
    graph: Mapping[int, np.ndarray],
    session: Session | None,
    execution: Execution,
    *,
    num_neighbors: int,
    key_bits: int,
) -> Neighbors:
    """Lines 5 and 7 for points that come after the graph, with codes in the clear.

    Returns the clients that take part, here all of them, and for each later point its nearest points of the
    graph, (indices, distances), int32 [m, k]. Points are numbered consecutively, client after client.
    """
    del session, execution, key_bits
    codes, joint = (np.concatenate(list(own.values())) for own in (later, graph))
    if not num_neighbors:
        nothing = np.zeros((len(codes), 0), np.int32)
        return list(later), nothing, nothing
    bits = padded_rows(joint)
    is_point = jnp.asarray(np.arange(len(bits)) < len(joint))
    most = min(num_neighbors, len(joint))  # further columns would be empty
    search = partial(knn.hamming_knn_among, bits=jnp.asarray(bits), num_neighbors=most)
    found = in_batches(lambda some: search(jnp.asarray(some), valid=is_point), codes, LATER_BATCH)
    return list(later), *found


def secure_in_graph(
    protocol: str,
    later: Mapping[int, np.ndarray],
    graph: Mapping[int, np.ndarray],
    session: Session | None,
    execution: Execution,
    *,
    num_neighbors: int,
    key_bits: int,
) -> Neighbors:
    """Lines 5 and 7 for later points by a protocol in which the server learns their distances to the graph.

    Returns the clients that have stayed, and (indices, distances) among their points.
    """
    from jaxfed.secure import later_neighbors

    assert session is not None
    return later_neighbors.nearest_in_graph(
        session,
        later,
        graph,
        num_neighbors,
        protocol,
        key_bits=key_bits,
        workers=execution.workers,
        progress=execution.counting("pairs of later points"),
    )


def plaintext_row_sums(
    contributions: Contributions,
    counts: Counts,
    rows: Mapping[int, slice],
    session: Session | None,
    execution: Execution,
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Line 14 in the clear: client j gets rows R_j of the summed contributions, f32 [n_j, C].

    It also gets the sum of the counts [t, C], f32. A client that has left before does not count and gets
    nothing.
    """
    del execution
    staying = [client for client in rows if session is None or client in session.clients]
    if not staying:
        return {}
    first, *others = contributions.values.values()
    total = sum(others, start=first)
    summed = np.stack([counts[client] for client in staying]).sum(axis=0, dtype=np.float32)
    return {client: (total[rows[client]], summed) for client in staying}


def secure_row_sums(
    contributions: Contributions,
    counts: Counts,
    rows: Mapping[int, slice],
    session: Session | None,
    execution: Execution,
    *,
    resilient: bool = False,
    signed: bool = False,
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Line 14 by a protocol in which client j learns its rows and no party learns anything else.

    Counts are t further rows of every client. Each client learns only their sum, over exactly the clients
    whose contributions count. Returns the rows of the clients that have stayed.
    """
    from jaxfed.secure import cross_steps

    assert session is not None
    sums = cross_steps.sums_and_totals(
        session,
        contributions.values,
        counts,
        rows,
        parts=contributions.shares,
        resilient=resilient,
        signed=signed,
        progress=execution.counting("uploads for row sums"),
    )
    return {
        client: (own.astype(np.float32), total.astype(np.float32))
        for client, (own, total) in sums.items()
    }


def largest_confidences(
    own: Mapping[int, np.float32], session: Session | None
) -> dict[int, np.float32]:
    """The largest of the clients' largest confidences, float32, at every client that stays.

    For `relative_confidence`, which is not in the paper. With a session, the server compares them.
    """
    if session is None:
        largest = max(own.values(), default=np.float32(0))
        return dict.fromkeys(own, largest)
    from jaxfed.secure import largest_value

    return largest_value.run(session, own)


PROJECTIONS: dict[str, Callable[..., jax.Array]] = {
    "seed": projection_of_seed,
    "group_secret": projection_of_group_secret,
}
# Search over codes in the clear: (codes, k, valid=...) -> (indices, distances).
NEIGHBORS: dict[str, Callable[..., tuple[jax.Array, jax.Array]]] = {
    "exact": knn.hamming_knn,
    "approximate": nn_descent.approximate_hamming_knn,
}


HAMMING: dict[str, Callable[..., Neighbors]] = {
    "plaintext": plaintext_hamming,
    **{protocol: partial(secure_hamming, protocol) for protocol in ("phe", "ot", "masked")},
}
# The same for points that come after the graph.
IN_GRAPH: dict[str, Callable[..., Neighbors]] = {
    protocol: plaintext_in_graph if protocol == "plaintext" else partial(secure_in_graph, protocol)
    for protocol in HAMMING
}
ROW_SUMS: dict[str, Callable[..., dict[int, tuple[np.ndarray, np.ndarray]]]] = {
    "plaintext": plaintext_row_sums,
    "masked": secure_row_sums,
    "masked_resilient": partial(secure_row_sums, resilient=True),
    "masked_resilient_signed": partial(secure_row_sums, resilient=True, signed=True),
}
