"""Protocols of SecureHamming by name: the steps of all clients, and of each pair of clients.

A protocol is a function of the session, the codes of every client as the first of a pair, and as the second.
If they differ, two clients form two pairs. Its last argument has the pairs that are known beforehand, which
clients of a network receive. `jaxfed.secure.cross_steps` runs its steps. The functions have the names that
`jaxfed.xclp.settings.parameters.HAMMING` lists, the only list of protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxfed.host.parallel.workers import Mapped
from jaxfed.secure.hamming import masked as masked_codes
from jaxfed.secure.hamming import matrix, transfer
from jaxfed.secure.primitives.blocks import Block
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session

if TYPE_CHECKING:
    from jaxfed.secure.hamming import paillier_packed

Codes = Mapping[int, np.ndarray]  # uint32 [n_j, L / 32] of every client
OwnStep = Callable[[int], None]  # a client's step before its pairs
PairStep = Callable[[int, int], Iterator[Block]]  # the protocol of two clients, first and second
Steps = tuple[OwnStep, PairStep]
Span = tuple[int, int]  # first of some consecutive points, and their end


class Paillier(NamedTuple):
    """Settings of protocols with Paillier's encryption: |N|, and the `map` that runs tasks."""

    key_bits: int
    mapped: Mapped


Pairs = Sequence[matrix.Pair]
Protocol = Callable[[Session, Codes, Codes, Paillier, Pairs], Steps]


def masked(session: Session, firsts: Codes, seconds: Codes, _: Paillier, known: Pairs) -> Steps:
    """Steps of `masked`; a client's masks cover its points as second, then as first if they differ."""
    is_same, run = firsts is seconds, session.reserve()
    as_second = {j: range(len(own)) for j, own in seconds.items()}
    as_first = as_second
    codes = seconds
    if not is_same:
        codes = {j: np.concatenate([own, firsts[j]]) for j, own in seconds.items()}
        as_first = {j: range(len(own), len(codes[j])) for j, own in seconds.items()}
    sizes = {j: len(own) for j, own in codes.items()}
    parties = session.parties(masked_codes.client, codes, list(codes), sizes=sizes, run=run)
    num_bits = 32 * next(iter(codes.values())).shape[1]
    server = masked_codes.Server(session.endpoints[SERVER], num_bits, session.presence)
    of_client = {j: [as_second[j]] if is_same else [as_second[j], as_first[j]] for j in codes}
    points_of = parties.stream(
        "send_points", {j: [(own.start, own.stop) for own in of_client[j]] for j in codes}
    )

    def arguments(partner: int, pair: tuple[int, int]) -> tuple[int, Span, Span]:
        """Arguments that one of two clients of the pair (first, second) receives."""
        own = {pair[0]: as_first[pair[0]], pair[1]: as_second[pair[1]]}
        rows, columns = (own[j] for j in sorted(own))
        return partner, (rows.start, rows.stop), (columns.start, columns.stop)

    told: dict[int, list[tuple[int, Span, Span]]] = {j: [] for j in codes}
    for j, k in known:
        told[j].append(arguments(k, (j, k)))
        told[k].append(arguments(j, (j, k)))
    shares_of = parties.stream("send_shares", told)

    def send_points(client: int) -> None:
        for points in of_client[client]:
            messages = points_of(client, points.start, points.stop)
            masked_codes.receive_points(messages, server, client, points)

    abandoned = set[int]()

    def pair(j: int, k: int) -> Iterator[Block]:
        of_pair = {j: as_first[j], k: as_second[k]}
        low, high = sorted(of_pair)
        for lost in session.presence.gone - abandoned:
            abandoned.add(lost)  # a network has carried its partners' shares all the same
            for partner in codes:
                server.abandon(*sorted((partner, lost)))
        for block in masked_codes.run_pair(
            shares_of(low, *arguments(high, (j, k))),
            shares_of(high, *arguments(low, (j, k))),
            server,
            (low, high),
            (of_pair[low], of_pair[high]),
        ):
            rows, columns = (
                range(numbers.start - own.start, numbers.stop - own.start)
                for numbers, own in ((block.rows, of_pair[low]), (block.columns, of_pair[high]))
            )
            if low == j:
                yield Block(j, k, rows, columns, block.distances)
            else:
                yield Block(j, k, columns, rows, block.distances.T)

    return send_points, pair


def ot(session: Session, firsts: Codes, seconds: Codes, _: Paillier, known: Pairs) -> Steps:
    """Steps of `ot`: an oblivious transfer for each bit of each pair of points."""
    del known
    ends, runs = session.endpoints, session.reserve(2)

    def pair(j: int, k: int) -> Iterator[Block]:
        n_j, n_k, num_bits = len(firsts[j]), len(seconds[k]), 32 * firsts[j].shape[1]
        run = runs + (
            j > k
        )  # a context of transfers is used once, even if two clients form two pairs
        return transfer.run_pair(
            transfer.First(ends[j], k, firsts[j], run, random_bytes=session.source(j)),
            transfer.Second(*(ends[k], j, seconds[k], n_j, run), random_bytes=session.source(k)),
            transfer.Server(ends[SERVER], j, k, n_j, num_bits),
            (n_j, n_k, num_bits),
        )

    return _nothing, pair


def phe(session: Session, firsts: Codes, seconds: Codes, options: Paillier, known: Pairs) -> Steps:
    """Steps of `phe`: the first client of a pair encrypts its codes, the second adds under encryption."""
    del known
    # Imported here: the packages for big integers are for this protocol alone.
    from jaxfed.secure.hamming import paillier_packed
    from jaxfed.secure.primitives import paillier

    ends, (key_bits, mapped) = session.endpoints, options

    @cache  # once for all partners
    def encrypted(client: int) -> paillier_packed.EncryptedPoints:
        key = paillier.generate_key(key_bits)
        return paillier_packed.EncryptedPoints(
            firsts[client], key, random_bytes=session.source(client), mapped=mapped
        )

    def pair(j: int, k: int) -> Iterator[Block]:
        n_j, n_k = len(firsts[j]), len(seconds[k])
        return paillier_packed.run_pair(
            paillier_packed.First(ends[j], k, encrypted(j), mapped=mapped),
            paillier_packed.Second(
                *(ends[k], j, seconds[k], n_j),
                key_bits=key_bits,
                random_bytes=session.source(k),
                mapped=mapped,
            ),
            paillier_packed.Server(
                ends[SERVER], j, k, n_j, 32 * firsts[j].shape[1], key_bits=key_bits
            ),
            (n_j, n_k),
        )

    return _nothing, pair


def _nothing(client: int) -> None:
    """Own step of protocols whose clients do nothing before their pairs."""
    del client
