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
from jaxfed.secure.hamming.matrix import NearestOthers
from jaxfed.secure.hamming.pair import Block
from jaxfed.secure.hamming.protocols import Codes, Protocol
from jaxfed.secure.primitives import prg
from jaxfed.secure.row_sums import masked as masked_row_sums
from jaxfed.secure.row_sums.server_sums import RowClient, row_client, summed
from jaxfed.secure.session.endpoint import SERVER, Endpoint
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
    return prg.hyperplanes(anybody.group_seed("xclp/projection"), num_bits, dim)


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
    sizes = {client: len(points) for client, points in codes.items()}
    if not codes:
        return Neighbors([], *NearestOthers({}, num_bits, num_neighbors).in_order())
    server = session.endpoints[SERVER]
    distances_of = session.parties(matrix.OwnDistances, codes, list(codes)).stream(
        "send_own", {client: [()] for client in codes}
    )
    known = [] if choices else list(itertools.combinations(sorted(sizes), 2))
    nearest = NearestOthers(sizes, num_bits, num_neighbors)
    turns = (
        choose({j: sizes[j] for j in nearest.clients}, nearest.in_order()[0]) for choose in choices
    )
    prepare, pair = protocol(session, codes, key_bits, known)

    def step(client: int) -> Iterator[Block]:
        yield from matrix.run_own(distances_of(client), server, client, sizes[client], num_bits)
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
    return Neighbors(nearest.clients, *nearest.in_order())


def sums_of_rows(
    session: Session,
    contributions: Mapping[int, Any],
    rows: Mapping[int, slice],
    *,
    resilient: bool = False,
    signed: bool = False,
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
        progress: receives the number of uploads that have arrived.
        num_classes: C; that of the first contribution if left out.
        constructor: makes a client from what `contributions` holds; arguments as `row_client`.
        plan: further arguments of `constructor`.

    Returns:
        The sums of all clients that stay to the end; None for one in another process.

    Raises:
        ProtocolError: an unexpected message; no client gets sums then.
        UsageError: a contribution beyond the fixed-point range, or `signed` without `resilient`.
    """
    if signed and not resilient:
        raise UsageError("signed=True: allowed with resilient=True, which has what is signed")
    clients = [client for client in session.clients if client in rows]
    if not clients:
        return {}
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
    sums over exactly the clients whose contributions count, and the server does not learn them. Clients in
    other processes are left out.
    """
    num_totals, num_classes = next(iter(totals.values())).shape
    longer = {
        client: slice(owned.start + number * num_totals, owned.stop + (number + 1) * num_totals)
        for number, (client, owned) in enumerate(rows.items())
    }
    sums = sums_of_rows(
        session,
        {client: (values, totals[client]) for client, values in contributions.items()},
        longer,
        num_classes=num_classes,
        constructor=client_with_totals,
        shorter=rows,
        **options,
    )
    return {
        client: (rows[: len(rows) - num_totals], rows[len(rows) - num_totals :])
        for client, rows in sums.items()
        if rows is not None
    }


def client_with_totals(
    endpoint: Endpoint,
    contribution: tuple[np.ndarray, np.ndarray],
    *,
    shorter: Mapping[int, slice],
    **options: Any,
) -> RowClient:
    """A client that adds totals.

    Args:
        endpoint: its end of the session.
        contribution: its rows [n, C], and its totals [t, C].
        shorter: R_k of every client without totals.
        options: as `row_client`; `rows` are R_k with totals.
    """
    values, totals = contribution
    parts = [part for rows in shorter.values() for part in (values[rows], totals)]
    return row_client(endpoint, np.concatenate(parts), **options)
