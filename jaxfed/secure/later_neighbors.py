"""SecureHamming between later points and the points of an existing graph.

    own     client -> server   distances of its later points to its own points of the graph,
                               up to 512 x 512 at a time, packed

Two clients form two pairs in the protocol of the labeling (`jaxfed.secure.cross_steps`): each brings its
later points as the first of a pair, and its points of the graph as the second. Neither later points nor
points of the graph are compared among themselves. The server learns the distances, and no party learns
anything else. Masks, keys and transfers belong to this run alone. With `masked` the points of the graph are
sent again, under this run's masks, because masks serve one run.

A client that leaves meanwhile counts as absent: it gets no labels for its later points, and its points of the
graph are no neighbors.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import hamming
from jaxfed.secure.cross_steps import Neighbors, through_pairs
from jaxfed.secure.hamming import matrix
from jaxfed.secure.hamming.nearest_others import NearestPoints
from jaxfed.secure.hamming.protocols import Codes, Protocol
from jaxfed.secure.primitives.blocks import Block, checked_distances, ranges
from jaxfed.secure.primitives.ring import pack, ring_bits, unpack
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.parties import Session


def nearest_in_graph(
    session: Session,
    later: Codes,
    graph: Codes,
    num_neighbors: int,
    protocol: Protocol,
    *,
    key_bits: int = 2048,
    workers: int = 0,
    progress: matrix.PairsDone | None = None,
) -> Neighbors:
    """The k nearest points of the graph to every later point, at the server.

    Args:
        session: the parties.
        later: uint32 [m_j, L / 32] of every client.
        graph: its points of the graph, uint32 [n_j, L / 32], of the same clients.
        num_neighbors: k.
        protocol: a function of `jaxfed.secure.hamming.protocols`.
        key_bits, workers, progress: as `jaxfed.secure.cross_steps.nearest_others`.

    Returns:
        The clients that have stayed, and int32 [m, k]: indices count the points of the graph of these
        clients.

    Raises:
        ProtocolError: an unexpected message; there is no result then.

    Cost: that of `nearest_others` for m n pairs of points instead of n^2 / 2.
    """
    num_bits = 32 * next(iter(graph.values())).shape[1]
    # At most all points, whether or not their client has left: further columns would be empty.
    most = min(num_neighbors, sum(map(len, graph.values())))
    later, graph = ({j: own[j] for j in session.clients if j in own} for own in (later, graph))
    asking, sizes = ({j: len(own) for j, own in codes.items()} for codes in (later, graph))
    server, clients = session.endpoints[SERVER], list(sizes)
    codes = {j: (later[j], graph[j]) for j in clients}
    own = session.parties(OwnDistances, codes, clients).stream(
        "send_own", {client: [()] for client in clients}
    )
    return through_pairs(
        session,
        NearestPoints(asking, sizes, num_bits, most),
        protocol,
        later,
        lambda client: run_own(
            own(client), server, client, (asking[client], sizes[client]), num_bits
        ),
        second=graph,
        key_bits=key_bits,
        workers=workers,
        progress=progress,
    )


class OwnDistances:
    """A client that sends the distances from its later points to its own points of the graph.

    Args:
        endpoint: its end of the session.
        codes: of later points and of its points of the graph, uint32 [m_j, L / 32] and [n_j, L / 32].
        random_bytes: unused; nothing is drawn.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        codes: tuple[np.ndarray, np.ndarray],
        *,
        random_bytes: RandomBytes | None = None,
    ) -> None:
        del random_bytes
        self._endpoint, (self._later, self._graph) = endpoint, codes

    def send_own(self) -> Iterator[None]:
        """Send the distances, a block at a time."""
        width = ring_bits(32 * self._graph.shape[1])
        for rows, columns in _own_blocks(len(self._later), len(self._graph)):
            between = hamming.distances(
                jnp.asarray(self._later[rows.start : rows.stop]),
                jnp.asarray(self._graph[columns.start : columns.stop]),
            )
            sent = pack(np.asarray(between).astype(np.uint16), width)
            self._endpoint.send(SERVER, "own", sent)
            yield


def run_own(
    messages: Iterator[None],
    server: Endpoint,
    client: int,
    num_points: tuple[int, int],
    num_bits: int,
) -> Iterator[Block]:
    """Have a client send these distances; yields each block that the server has received.

    Args:
        messages: those of `OwnDistances.send_own`, made by `next`.
        server: the server's endpoint.
        client: the client's address.
        num_points: m_j and n_j.
        num_bits: L.

    Raises:
        DroppedOut: the client has left.
    """
    for rows, columns in _own_blocks(*num_points):
        next(messages)
        yield receive_own(server, client, rows, columns, num_bits)


def receive_own(
    endpoint: Endpoint, client: int, rows: range, columns: range, num_bits: int
) -> Block:
    """Receive a block of these distances at the server.

    Raises:
        ProtocolError: a message of another length, or a distance above L.
    """
    shape = len(rows), len(columns)
    message = endpoint.receive(client, "own")
    between = unpack(message, shape[0] * shape[1], ring_bits(num_bits)).reshape(shape)
    return Block(client, client, rows, columns, checked_distances(between, num_bits))


def _own_blocks(num_later: int, num_in_graph: int) -> Iterator[tuple[range, range]]:
    for rows in ranges(num_later, matrix.BLOCK_POINTS):
        for columns in ranges(num_in_graph, matrix.BLOCK_POINTS):
            yield rows, columns
