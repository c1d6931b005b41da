"""Sums that the server reads: row sums over rows that the server owns, and no client.

All clients upload these rows, so all masks cancel there, and the server reads the sum over all clients that
stayed (Bonawitz et al., CCS 2017). A client refuses a round without other clients.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.row_sums import masked, resilient
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session


def ring_sums(
    session: Session,
    own: Mapping[int, np.ndarray],
    *,
    is_resilient: bool,
    summed: list[int] | None = None,
) -> np.ndarray | None:
    """The sum of the clients' matrices in Z_{2^64}, uint64 [n, C], at the server; each one stays hidden.

    Args:
        session: the parties.
        own: matrices by address, for clients of the session: ring elements uint64 [n, C], or real numbers,
            which are encoded by a `FixedPoint` with the number of clients as terms.
        is_resilient: use double masks; a client that leaves after its upload then still counts (`resilient`).
        summed: the addresses of the clients in the sum are added here.

    Returns:
        The sum; None with fewer than two clients, or if all have left at the end.

    Raises:
        ProtocolError: an unexpected message.
        UsageError: a number beyond the fixed-point range.
    """
    clients = [client for client in session.clients if client in own]
    if not clients:
        return None
    protocol = resilient if is_resilient else masked
    shape = own[clients[0]].shape
    nothing = slice(shape[0], shape[0])
    rows = {SERVER: slice(0, shape[0]), **dict.fromkeys(clients, nothing)}
    parties = {
        client: protocol.Client(session.endpoints[client], own[client], rows) for client in clients
    }
    server = protocol.Server(session.endpoints[SERVER], rows, shape[1])
    first_round = session.reserve(len(clients) + 1)  # every dropout may start another one
    if not protocol.run(parties, server, first_round=first_round):
        return None
    if summed is not None:
        summed.extend(server.summed)
    return server.own_sums()


def server_sums(
    session: Session,
    own: Mapping[int, np.ndarray],
    *,
    is_resilient: bool,
    summed: list[int] | None = None,
) -> np.ndarray | None:
    """The sum of the clients' real matrices [n, C], float64, at the server; as `ring_sums`."""
    numbers = {client: matrix.astype(np.float64) for client, matrix in own.items()}
    sums = ring_sums(session, numbers, is_resilient=is_resilient, summed=summed)
    return None if sums is None else FixedPoint(1).decode(sums)
