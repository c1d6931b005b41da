"""Sums that the server reads: row sums over rows that the server owns, and no client.

All clients upload these rows, so all masks cancel there, and the server reads the sum over all clients that
stayed (Bonawitz et al., CCS 2017). A client refuses a round without other clients. In a sparse session
(`Session(n, mask_partners=k)`) double masks are those of `sparse`, and no message grows with n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.row_sums import masked
from jaxfed.secure.row_sums.participants import RowsOf
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.phases import Parties

if TYPE_CHECKING:
    from jaxfed.secure.row_sums import resilient, sparse
    from jaxfed.secure.session.neighborhoods import Promise

    RowClient = masked.Client | resilient.Client | sparse.Client

# What a server may have a client of row sums do, whichever protocol it is.
CLIENT_STEPS = frozenset(
    (
        *("upload", "finish", "announce", "share_secrets", "collect_secrets", "abandon"),
        *("hear_survivors", "reveal"),
    )
)


def client(
    endpoint: Endpoint,
    values: np.ndarray,
    *,
    random_bytes: RandomBytes,
    clients: Sequence[int] | int,
    is_resilient: bool,
    promise: Promise | None = None,
) -> RowClient:
    """One client of such a sum.

    Args:
        endpoint: its end of the session.
        values: as in `ring_sums`.
        random_bytes: source of its randomness.
        clients: all that may take part; their number is enough in a sparse session.
        is_resilient: as in `ring_sums`.
        promise: what its neighbors must withstand, in a sparse session.
    """
    all_clients = [endpoint.address] if isinstance(clients, int) else clients
    rows = _rows(all_clients, len(values))
    return row_client(
        endpoint,
        values,
        random_bytes=random_bytes,
        rows=rows,
        is_resilient=is_resilient,
        promise=promise,
    )


def row_client(
    endpoint: Endpoint,
    values: np.ndarray,
    *,
    random_bytes: RandomBytes,
    rows: RowsOf,
    is_resilient: bool,
    signed: bool = False,
    promise: Promise | None = None,
) -> RowClient:
    """One client of row sums by one of the protocols; arguments as `resilient.Client`, `sparse.Client`."""
    if promise:
        from jaxfed.secure.row_sums import sparse

        return sparse.Client(endpoint, values, rows, promise=promise, random_bytes=random_bytes)
    if not is_resilient:
        return masked.Client(endpoint, values, rows)
    own: resilient.Client = protocol_of(is_resilient=True).Client(
        endpoint, values, rows, signed=signed, random_bytes=random_bytes
    )
    return own


def protocol_of(*, is_resilient: bool) -> Any:
    """The module of the double masks, imported when it is asked for, or of the plain ones."""
    if is_resilient:
        from jaxfed.secure.row_sums import resilient

        return resilient
    return masked


def ring_sums(
    session: Session,
    own: Mapping[int, Any],
    *,
    is_resilient: bool,
    shape: tuple[int, int] | None = None,
    constructor: Callable[..., Any] = client,
    before: Callable[[Parties], Iterable[int]] | None = None,
) -> np.ndarray | None:
    """The sum of the clients' matrices in Z_{2^64}, uint64 [n, C], at the server; each one stays hidden.

    `session.contributors` are then the clients in the sum.

    Args:
        session: the parties.
        own: matrices by address, for clients of the session: ring elements uint64 [n, C], or real numbers,
            which are encoded by a `FixedPoint` with the number of clients as terms; or what `constructor`
            takes.
        is_resilient: use double masks; a client that leaves after its upload then still counts (`resilient`).
        shape: (n, C); that of the first matrix if left out.
        constructor: makes a client; arguments as `client`.
        before: a phase before the sum; returns the clients that take part.

    Returns:
        The sum; None with fewer than two clients, or if all have left at the end.

    Raises:
        ProtocolError: an unexpected message at a client.
        UsageError: a number beyond the fixed-point range, or single masks in a sparse session.
    """
    session.contributors = []
    clients = [client for client in session.clients if client in own]
    if not clients:
        return None
    shape = own[clients[0]].shape if shape is None else shape
    graph, protocol = session.graph, protocol_of(is_resilient=is_resilient)
    plan: dict[str, Any] = {"clients": clients, "is_resilient": is_resilient}
    if graph:
        if not is_resilient:
            raise UsageError("a session with `mask_partners`: use is_resilient=True")
        from jaxfed.secure.row_sums import sparse

        protocol = sparse
        plan |= {"clients": len(clients), "promise": graph.promise}
    parties = session.parties(constructor, own, clients, **plan)
    rows = _rows(list(graph.neighbors) if graph else clients, shape[0])
    options = {"graph": graph} if graph else {}
    server = protocol.Server(session.endpoints[SERVER], rows, shape[1], **options)
    members = clients if before is None else before(parties)
    first_round = session.reserve(len(clients) + 1)  # every dropout may start another one
    if not protocol.run(parties, server, members, first_round=first_round):
        return None
    session.contributors = server.summed
    return server.own_sums()


def server_sums(
    session: Session, own: Mapping[int, Any], *, is_resilient: bool, **options: Any
) -> np.ndarray | None:
    """The sum of the clients' real matrices [n, C], float64, at the server; arguments as `ring_sums`."""
    sums = ring_sums(session, own, is_resilient=is_resilient, **options)
    return None if sums is None else FixedPoint(1).decode(sums)


def _rows(clients: Sequence[int], num_rows: int) -> RowsOf:
    """All rows are the server's."""
    return {SERVER: slice(0, num_rows), **dict.fromkeys(clients, slice(num_rows, num_rows))}
