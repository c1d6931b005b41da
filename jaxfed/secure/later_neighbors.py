"""SecureHamming for points that come after a graph was made: of each of them, to the graph's points only.

    own     client -> server   distances of its later points to its own points of the graph,
                               up to 512 x 512 at a time, packed

Every two clients meet twice, in the protocol that they met in before (`jaxfed.secure.cross_steps`): each
brings its later points as the first of a pair, and its points of the graph as the second. No later point
is compared with another, and no point of the graph with another. The server learns the distances, nobody
else anything; masks, keys and transfers are of a run of its own. With `masked` the points of the graph
are sent once more, under the masks of this run: the masks of the last one went with it.

A client that leaves meanwhile is as if it had not been there: its later points are not asked for, and its
points of the graph are nobody's neighbors.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import hamming
from jaxfed.secure.cross_steps import Codes, Neighbors, through_pairs
from jaxfed.secure.hamming import matrix
from jaxfed.secure.hamming.nearest_others import Nearest
from jaxfed.secure.primitives.blocks import Block, checked_distances, ranges
from jaxfed.secure.primitives.ring import pack, ring_bits, unpack
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.parties import Session


def nearest_in_graph(
    session: Session,
    later: Codes,
    graph: Codes,
    num_neighbors: int,
    protocol: str,
    *,
    key_bits: int = 2048,
    workers: int = 0,
    progress: matrix.Progress | None = None,
) -> Neighbors:
    """The k nearest points of the graph of every later point, as the server finds them.

    Args:
        session: the parties.
        later: uint32 [m_j, L / 32] of every client.
        graph: its points of the graph, uint32 [n_j, L / 32], of the same clients.
        num_neighbors: k.
        protocol: a key of `jaxfed.secure.cross_steps.PROTOCOLS`.
        key_bits, workers, progress: as `jaxfed.secure.cross_steps.nearest_others`.

    Returns:
        Who has stayed, and int32 [m, k]: indices count the points of the graph of those who have.

    Raises:
        ProtocolError: a message that does not belong where it arrives; there is no result then.

    Cost: of m n pairs of points what `nearest_others` takes for n^2 / 2.
    """
    num_bits = 32 * next(iter(graph.values())).shape[1]
    # Of all, whoever has left: more would be as many columns of nobody.
    most = min(num_neighbors, sum(map(len, graph.values())))
    later, graph = ({j: own[j] for j in session.clients if j in own} for own in (later, graph))
    asking, sizes = ({j: len(own) for j, own in codes.items()} for codes in (later, graph))
    server = session.endpoints[SERVER]
    return through_pairs(
        session,
        Nearest(asking, sizes, num_bits, most),
        protocol,
        later,
        lambda client: run_own(session.endpoints[client], server, later[client], graph[client]),
        second=graph,
        key_bits=key_bits,
        workers=workers,
        progress=progress,
    )


def run_own(
    endpoint: Endpoint, server: Endpoint, later: np.ndarray, graph: np.ndarray
) -> Iterator[Block]:
    """A client's distances between its own points; yields a block when the server has it.

    Args:
        endpoint: the client's.
        server: the server's.
        later: codes uint32 [m_j, L / 32].
        graph: codes uint32 [n_j, L / 32].

    Raises:
        DroppedOut: the client is gone.
    """
    num_bits = 32 * graph.shape[1]
    for rows in ranges(len(later), matrix.BLOCK_POINTS):
        for columns in ranges(len(graph), matrix.BLOCK_POINTS):
            between = hamming.distances(
                jnp.asarray(later[rows.start : rows.stop]),
                jnp.asarray(graph[columns.start : columns.stop]),
            )
            sent = pack(np.asarray(between).astype(np.uint16), ring_bits(num_bits))
            endpoint.send(SERVER, "own", sent)
            yield receive_own(server, endpoint.address, rows, columns, num_bits)


def receive_own(
    endpoint: Endpoint, client: int, rows: range, columns: range, num_bits: int
) -> Block:
    """The server takes a block of them.

    Raises:
        ProtocolError: a message of another length, or a distance above L.
    """
    shape = len(rows), len(columns)
    message = endpoint.receive(client, "own")
    between = unpack(message, shape[0] * shape[1], ring_bits(num_bits)).reshape(shape)
    return Block(client, client, rows, columns, checked_distances(between, num_bits))
