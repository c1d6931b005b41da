"""Protocols of SecureHamming by name: the steps of all clients, and of each pair of clients.

A protocol is a function of the session, the codes of every client, the size of Paillier's keys, and the
pairs that are known beforehand, which clients of a network receive. `jaxfed.secure.cross_steps` runs its
steps. The functions have the names that `jaxfed.xclp.settings.parameters.HAMMING` lists, the only list of
protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from jaxfed.secure.hamming import masked as masked_codes
from jaxfed.secure.hamming import matrix, transfer
from jaxfed.secure.hamming.pair import Block
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session

if TYPE_CHECKING:
    from jaxfed.secure.hamming import paillier_packed

Codes = Mapping[int, np.ndarray]  # uint32 [n_j, L / 32] of every client
OwnStep = Callable[[int], None]  # a client's step before its pairs
PairStep = Callable[[int, int], Iterator[Block]]  # the protocol of two clients, the lower one first
Steps = tuple[OwnStep, PairStep]
Pairs = Sequence[matrix.Pair]
Protocol = Callable[[Session, Codes, int, Pairs], Steps]


def masked(session: Session, codes: Codes, _: int, known: Pairs) -> Steps:
    """Steps of `masked`: a client sends its hidden points once, and its shares for each pair."""
    sizes = {j: len(points) for j, points in codes.items()}
    parties = session.parties(
        masked_codes.Client, codes, list(codes), sizes=sizes, run=session.reserve()
    )
    num_bits = 32 * next(iter(codes.values())).shape[1]
    server = masked_codes.Server(session.endpoints[SERVER], num_bits, session.presence)
    points_of = parties.stream("send_points", {j: [()] for j in codes})
    partners: dict[int, list[tuple[int]]] = {j: [] for j in codes}
    for j, k in known:
        partners[j].append((k,))
        partners[k].append((j,))
    shares_of = parties.stream("send_shares", partners)

    def send_points(client: int) -> None:
        masked_codes.receive_points(points_of(client), server, client, sizes[client])

    abandoned = set[int]()

    def pair(j: int, k: int) -> Iterator[Block]:
        for lost in session.presence.gone - abandoned:
            abandoned.add(lost)  # a network has carried its partners' shares all the same
            for partner in codes:
                server.abandon(*sorted((partner, lost)))
        return masked_codes.run_pair(
            shares_of(j, k), shares_of(k, j), server, (j, k), (sizes[j], sizes[k])
        )

    return send_points, pair


def ot(session: Session, codes: Codes, _: int, known: Pairs) -> Steps:
    """Steps of `ot`: an oblivious transfer for each bit of each pair of points."""
    del known
    ends, run = session.endpoints, session.reserve(2)

    def pair(j: int, k: int) -> Iterator[Block]:
        n_j, n_k, num_bits = len(codes[j]), len(codes[k]), 32 * codes[j].shape[1]
        return transfer.run_pair(
            transfer.First(ends[j], k, codes[j], run, random_bytes=session.source(j)),
            transfer.Second(*(ends[k], j, codes[k], n_j, run), random_bytes=session.source(k)),
            transfer.Server(ends[SERVER], j, k, n_j, num_bits),
            (n_j, n_k, num_bits),
        )

    return _nothing, pair


def phe(session: Session, codes: Codes, key_bits: int, known: Pairs) -> Steps:
    """Steps of `phe`: the first client of a pair encrypts its codes, the second adds under encryption."""
    del known
    # Imported here: the packages for big integers are for this protocol alone.
    from jaxfed.secure.hamming import paillier_packed
    from jaxfed.secure.primitives import paillier

    ends = session.endpoints

    @cache  # once for all partners
    def encrypted(client: int) -> paillier_packed.EncryptedPoints:
        key = paillier.generate_key(key_bits)
        return paillier_packed.EncryptedPoints(
            codes[client], key, random_bytes=session.source(client)
        )

    def pair(j: int, k: int) -> Iterator[Block]:
        n_j, n_k = len(codes[j]), len(codes[k])
        return paillier_packed.run_pair(
            paillier_packed.First(ends[j], k, encrypted(j)),
            paillier_packed.Second(
                *(ends[k], j, codes[k], n_j), key_bits=key_bits, random_bytes=session.source(k)
            ),
            paillier_packed.Server(
                ends[SERVER], j, k, n_j, 32 * codes[j].shape[1], key_bits=key_bits
            ),
            (n_j, n_k),
        )

    return _nothing, pair


def _nothing(client: int) -> None:
    """Own step of protocols whose clients do nothing before their pairs."""
    del client
