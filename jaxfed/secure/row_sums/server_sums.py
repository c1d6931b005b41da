"""Row sums of a session by either protocol, and sums that the server reads: over rows that it owns.

All clients upload the server's rows, so all masks cancel there, and the server reads the sum over all clients
that stayed (Bonawitz et al., CCS 2017). A client refuses a round without other clients. In a sparse session
(`Session(n, mask_partners=k)`) double masks are between neighbors, and no message grows with n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums import double_masks, masked
from jaxfed.secure.row_sums.masked_rows import RowsOf
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.neighborhoods import PROMISE, Graph, Promise
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.phases import Parties
from jaxfed.secure.session.replayed_party import Role

RowClient = masked.Client | double_masks.Client

# What a server may have a client of row sums do, whichever protocol it is.
CLIENT_STEPS = frozenset(
    (
        *("upload", "finish", "announce", "share_secrets", "collect_secrets", "abandon"),
        *("hear_survivors", "reveal"),
    )
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
    """One client of row sums; arguments as `double_masks.Client`."""
    if not is_resilient:
        return masked.Client(endpoint, values, rows)
    return double_masks.Client(
        endpoint, values, rows, signed=signed, promise=promise, random_bytes=random_bytes
    )


def client(
    endpoint: Endpoint, values: np.ndarray, *, clients: Sequence[int] | int, **options: Any
) -> RowClient:
    """One client of a sum that the server reads.

    Args:
        endpoint: its end of the session.
        values: as in `ring_sums`.
        clients: all that may take part; their number is enough in a sparse session.
        options: as `row_client` without `rows`.
    """
    all_clients = [endpoint.address] if isinstance(clients, int) else clients
    return row_client(endpoint, values, rows=_rows(all_clients, len(values)), **options)


def summed(
    session: Session,
    constructor: Callable[..., Any],
    matrices: Mapping[int, Any],
    clients: Sequence[int],
    rows: RowsOf,
    num_classes: int,
    plan: Mapping[str, Any],
    *,
    is_resilient: bool,
    signed: bool = False,
    graph: Graph | None = None,
    before: Callable[[Parties], Iterable[int]] | None = None,
    progress: masked.UploadsDone | None = None,
) -> tuple[masked.Server, masked.RowSums]:
    """Run one sum of rows; returns the server's part after it, and the clients' rows.

    Each of `clients` is `constructor(endpoint, matrices[client], random_bytes=, is_resilient=, **plan)`, with
    a `promise` on a sparse graph. `before` is a phase before the sum that returns the clients that take part.
    """
    if graph:
        plan = {**plan, "promise": graph.promise}
    parties = session.parties(constructor, matrices, clients, is_resilient=is_resilient, **plan)
    end, members = session.endpoints[SERVER], clients if before is None else before(parties)
    first_round = session.reserve(len(clients) + 1)  # every dropout may start another one
    if is_resilient:
        server = double_masks.Server(end, rows, num_classes, signed=signed, graph=graph)
        row_sums = double_masks.run(
            parties, server, members, first_round=first_round, progress=progress
        )
        return server, row_sums
    single = masked.Server(end, rows, num_classes)
    return single, masked.run(parties, single, members, first_round=first_round, progress=progress)


def ring_sums(
    session: Session,
    matrices: Mapping[int, Any],
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
        matrices: by address, for clients of the session: ring elements uint64 [n, C], or real numbers,
            which are encoded by a `FixedPoint` with the number of clients as terms; or what `constructor`
            takes.
        is_resilient: use double masks; a client that leaves after its upload then still counts.
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
    clients = [client for client in session.clients if client in matrices]
    if not clients:
        return None
    graph = session.graph
    if graph and not is_resilient:
        raise UsageError("a session with `mask_partners`: use is_resilient=True")
    num_rows, num_classes = matrices[clients[0]].shape if shape is None else shape
    server, row_sums = summed(
        session,
        constructor,
        matrices,
        clients,
        _rows(list(graph.neighbors) if graph else clients, num_rows),
        num_classes,
        {"clients": len(clients) if graph else clients},
        is_resilient=is_resilient,
        graph=graph,
        before=before,
    )
    if not row_sums:
        return None
    session.contributors = server.summed
    return server.own_sums()


def role_of(name: str, num_clients: int, mask_partners: int) -> str:
    """Return the name of a client's role in a session on a network, by its graph."""
    return f"{name} among neighbors" if 0 < mask_partners < num_clients - 1 else name


def roles(
    name: str, constructor: Callable[..., Any], matrix: Any, *, is_resilient: bool
) -> dict[str, Role]:
    """Return the parties of one sum that a client on a network lets the server use.

    Args:
        name: of the sum.
        constructor: as for `ring_sums`.
        matrix: the client's.
        is_resilient: as for `ring_sums`; the client refuses the other protocol.
    """

    def among_all(endpoint: Any, matrix: Any, **plan: Any) -> Any:
        if plan["is_resilient"] is not is_resilient:
            raise ProtocolError("a sum by another protocol than the settings say")
        if plan["clients"] != endpoint.clients or len(endpoint.clients) < 2:
            raise ProtocolError("a sum of this client alone, or of others than the session's")
        return constructor(endpoint, matrix, **plan)

    def among_neighbors(endpoint: Any, matrix: Any, **plan: Any) -> Any:
        if not plan["is_resilient"] or plan["promise"] != list(PROMISE):
            raise ProtocolError("a sum with another promise than the settings say")
        number = plan["clients"]
        if type(number) is not int or number < len(endpoint.clients):
            raise ProtocolError("a sum of fewer clients than the session's")
        return constructor(endpoint, matrix, **plan)

    def role(made: Callable[..., Any], *plan: str) -> Role:
        return Role(made, lambda _: matrix, CLIENT_STEPS, frozenset(plan))

    return {
        name: role(among_all, "clients", "is_resilient"),
        f"{name} among neighbors": role(among_neighbors, "clients", "is_resilient", "promise"),
    }


def server_sums(
    session: Session, matrices: Mapping[int, Any], *, is_resilient: bool, **options: Any
) -> np.ndarray | None:
    """The sum of the clients' real matrices [n, C], float64, at the server; arguments as `ring_sums`."""
    sums = ring_sums(session, matrices, is_resilient=is_resilient, **options)
    return None if sums is None else FixedPoint(1).decode(sums)


def _rows(clients: Sequence[int], num_rows: int) -> RowsOf:
    """All rows are the server's."""
    return {SERVER: slice(0, num_rows), **dict.fromkeys(clients, slice(num_rows, num_rows))}
