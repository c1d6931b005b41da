"""XCLP's two cross steps over real protocols, which replace the plaintext steps of Algorithm 1.

All parties are separate objects in this process. They exchange nothing but messages through a session's
channel. One session serves one run of Algorithm 1. Its keys come from the operating system, and the results
do not depend on them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.secure.hamming import matrix
from jaxfed.secure.hamming.nearest_others import NearestOthers
from jaxfed.secure.hamming.protocols import Codes, Protocol
from jaxfed.secure.primitives import projection
from jaxfed.secure.primitives.blocks import Block
from jaxfed.secure.row_sums import masked as masked_row_sums
from jaxfed.secure.row_sums.server_sums import RowClient, row_client, summed
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.neighborhoods import (
    PROMISE,
    Promise,
    check_partners,
    drawn_graph,
    enough_partners,
)
from jaxfed.secure.session.parties import Session

# Numbers of points of the clients that take part, and the nearest points so far [n, k] -> further pairs.
ChoosePairs = Callable[[Mapping[int, int], np.ndarray], Sequence[matrix.Pair]]


class Neighbors(NamedTuple):
    """The nearest others of all points, stored by the server, and the clients that take part.

    Fields:
        clients: the clients that take part; points are numbered consecutively in this order.
        indices, distances: int32 [n, k], as `jaxfed.kernels.knn.hamming_knn` returns them.
    """

    clients: list[int]
    indices: np.ndarray
    distances: np.ndarray


def hyperplanes(session: Session, num_bits: int, dim: int) -> np.ndarray:
    """Pi as every client of the session draws it from the group secret: float32 [num_bits, dim]."""
    anybody = next(end for address, end in session.endpoints.items() if address != SERVER)
    return projection.hyperplanes(anybody.group_seed("xclp/projection"), num_bits, dim)


def nearest_others(
    session: Session,
    codes: Codes,
    num_neighbors: int,
    protocol: Protocol,
    *,
    key_bits: int = 2048,
    choices: Sequence[ChoosePairs] = (),
    progress: matrix.PairsDone | None = None,
) -> Neighbors:
    """SecureHamming among the clients, and each point's k nearest others (lines 5 and 7).

    A client that is not in the session, or leaves during this step, counts as absent.

    Args:
        session: the parties.
        codes: uint32 [n_j, L / 32] of every client.
        num_neighbors: k.
        protocol: a function of `jaxfed.secure.hamming.protocols`.
        key_bits: size of Paillier's keys, 2048 or 3072; other protocols ignore it.
        choices: choose the pairs of clients that are compared, one turn after another; all if left out. In
            one process only: clients of a network are told of all pairs.
        progress: receives the number of pairs of points that are done.

    Raises:
        ProtocolError: an unexpected message; there is no result then.

    Cost: `launch.bench --kernel=secure_hamming`; 8 k bytes a point and client at the server.
    """
    num_bits = 32 * next(iter(codes.values())).shape[1]
    codes = {client: codes[client] for client in session.clients}
    sizes = {client: len(own) for client, own in codes.items()}
    if not codes:
        return Neighbors([], *NearestOthers({}, num_bits, num_neighbors).found())
    server = session.endpoints[SERVER]
    own = session.parties(matrix.OwnDistances, codes, list(codes)).stream(
        "send_own", {client: [()] for client in codes}
    )
    known = [] if choices else list(itertools.combinations(sorted(sizes), 2))
    nearest = NearestOthers(sizes, num_bits, num_neighbors)
    turns = (
        choose({j: sizes[j] for j in nearest.clients}, nearest.found()[0]) for choose in choices
    )
    prepare, pair = protocol(session, codes, key_bits, known)

    def step(client: int) -> Iterator[Block]:
        yield from matrix.run_own(own(client), server, client, sizes[client], num_bits)
        prepare(client)

    matrix.collect(
        nearest,
        sizes,
        step,
        pair,
        pairs=turns if choices else [known],
        presence=session.presence,
        progress=progress,
    )
    return Neighbors(nearest.clients, *nearest.found())


def sums_of_rows(
    session: Session,
    contributions: Mapping[int, Any],
    rows: Mapping[int, slice],
    *,
    resilient: bool = False,
    signed: bool = False,
    mask_partners: int = 0,
    promise: Promise = PROMISE,
    progress: masked_row_sums.UploadsDone | None = None,
    num_classes: int | None = None,
    constructor: Callable[..., Any] = row_client,
    **plan: Any,
) -> dict[int, np.ndarray]:
    """SecureRowSums (line 14): client j gets rows R_j of the summed contributions, float64 [n_j, C].

    Dropouts: if a client leaves before its upload is complete, its contribution does not count. With
    `resilient` it may leave after that, if enough others stay. It gets no sums in any case.

    Args:
        session: the parties.
        contributions: Z^(j), real [n, C], of every client that owns some of the n points.
        rows: R_j of the same clients.
        resilient: use double masks; dropouts then need no second round (`row_sums.double_masks`).
        signed: with `resilient`, clients sign the list of survivors.
        mask_partners: with `resilient`, k, the number of others that a client shares masks and secrets with;
            0, or from the number of others on: all.
        promise: what the k partners must withstand.
        progress: receives the number of uploads that have arrived.
        num_classes: C; that of the first contribution if left out.
        constructor: makes a client from what `contributions` holds; arguments as `row_client`.
        plan: further arguments of `constructor`.

    Returns:
        The sums of all clients that stay to the end; None for one in another process.

    Raises:
        ProtocolError: an unexpected message; no client gets sums then.
        UsageError: a contribution beyond the fixed-point range, `signed` without `resilient`, or
            `mask_partners` too few for the promise, without `resilient`, or `signed`.
    """
    if signed and not resilient:
        raise UsageError("signed=True: allowed with resilient=True, which has what is signed")
    if mask_partners and (signed or not resilient):
        raise UsageError(
            key="mask_partners", value=mask_partners, allowed="use resilient=True, signed=False"
        )
    clients = [client for client in session.clients if client in rows]
    if not clients:
        return {}
    graph = None
    if mask_partners:
        check_partners(session.num_clients, mask_partners, promise)
        if mask_partners < len(clients) - 1:
            size = enough_partners(len(clients), mask_partners, promise)
            graph = drawn_graph(clients, size, session.source(SERVER), promise)
            rows = {client: own for client, own in rows.items() if client in graph.neighbors}
    _, sums = summed(
        session,
        constructor,
        contributions,
        clients,
        rows,
        next(iter(contributions.values())).shape[1] if num_classes is None else num_classes,
        {"rows": rows, "signed": signed, **plan},
        is_resilient=resilient,
        signed=signed,
        graph=graph,
        progress=progress,
    )
    return sums


def sums_and_totals(
    session: Session,
    contributions: Mapping[int, np.ndarray],
    totals: Mapping[int, np.ndarray],
    rows: Mapping[int, slice],
    **options: Any,
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """`sums_of_rows`, and in the same messages totals for every client: (Z[R_j], sum of `totals`).

    Every client owns t further rows, to which all clients add their `totals`, real [t, C]. So the totals are
    sums over exactly the clients whose contributions count, and the server does not learn them.
    """
    sums = undivided_sums(session, contributions, totals, rows, **options)
    split = {client: own.stop - own.start for client, own in rows.items()}
    return {
        client: (own[: split[client]], own[split[client] :])
        for client, own in sums.items()
        if own is not None  # it is in another process
    }


def undivided_sums(
    session: Session,
    contributions: Mapping[int, np.ndarray],
    totals: Mapping[int, np.ndarray],
    rows: Mapping[int, slice],
    *,
    shape: tuple[int, int] | None = None,
    **options: Any,
) -> dict[int, np.ndarray]:
    """`sums_and_totals` with both in one array [n_j + t, C]; None for a client in another process.

    `shape` is (t, C), that of the first client's if left out.
    """
    num_totals, num_classes = next(iter(totals.values())).shape if shape is None else shape
    longer = {
        client: slice(own.start + number * num_totals, own.stop + (number + 1) * num_totals)
        for number, (client, own) in enumerate(rows.items())
    }
    return sums_of_rows(
        session,
        {client: (own, totals[client]) for client, own in contributions.items()},
        longer,
        num_classes=num_classes,
        constructor=client_with_totals,
        shorter=rows,
        **options,
    )


def client_with_totals(
    endpoint: Endpoint,
    own: tuple[np.ndarray, np.ndarray],
    *,
    shorter: Mapping[int, slice],
    **options: Any,
) -> RowClient:
    """A client that adds totals.

    Args:
        endpoint: its end of the session.
        own: its contribution [n, C], and its totals [t, C].
        shorter: R_k of every client without totals.
        options: as `row_client`; `rows` are R_k with totals.
    """
    return row_client(endpoint, with_totals(*own, shorter), **options)


def with_totals(
    values: np.ndarray, own_totals: np.ndarray, rows: Mapping[int, slice]
) -> np.ndarray:
    """Values [n, C] with the same totals [t, C] after each client's rows."""
    return np.concatenate([part for own in rows.values() for part in (values[own], own_totals)])
