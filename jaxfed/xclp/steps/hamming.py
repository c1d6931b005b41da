"""Lines 5 and 7 of Algorithm 1: each point's nearest others, from codes in the clear or by a protocol.

Protocols need a session. They are imported where they run, because only they need their packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from jaxfed.federation.execution.settings import Execution
from jaxfed.kernels import knn
from jaxfed.kernels.devices.padding import in_batches, padded_rows
from jaxfed.kernels.devices.spread import everywhere
from jaxfed.kernels.knn_in_parts import hamming_knn_in_parts
from jaxfed.xclp.settings.exchangeable_steps import NEIGHBORS, Neighbors

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session

LATER_BATCH = 256  # points whose distances to all of the graph are held at a time


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
    codes: Sequence[np.ndarray],
    session: Session | None,
    execution: Execution,
    *,
    protocol: str,
    num_neighbors: int,
    neighbors: str,
    key_bits: int,
) -> Neighbors:
    """Lines 5 and 7 by a protocol in which the server learns H and no party learns anything else.

    Returns the clients that have stayed, and (indices, distances) among their points.
    """
    from jaxfed.secure import cross_steps
    from jaxfed.secure.hamming import protocols

    assert session is not None
    assert neighbors == "exact"  # all pairs; `Parameters` has checked it
    return cross_steps.nearest_others(
        session,
        dict(enumerate(codes)),
        num_neighbors,
        getattr(protocols, protocol),
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
    later: Mapping[int, np.ndarray],
    graph: Mapping[int, np.ndarray],
    session: Session | None,
    execution: Execution,
    *,
    protocol: str,
    num_neighbors: int,
    key_bits: int,
) -> Neighbors:
    """Lines 5 and 7 for later points by a protocol in which the server learns their distances to the graph.

    Returns the clients that have stayed, and (indices, distances) among their points.
    """
    from jaxfed.secure import later_neighbors
    from jaxfed.secure.hamming import protocols

    assert session is not None
    return later_neighbors.nearest_in_graph(
        session,
        later,
        graph,
        num_neighbors,
        getattr(protocols, protocol),
        key_bits=key_bits,
        workers=execution.workers,
        progress=execution.counting("pairs of later points"),
    )
