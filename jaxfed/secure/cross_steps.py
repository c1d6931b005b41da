"""XCLP's two cross steps over real protocols: what Algorithm 1 calls in place of its plaintext steps.

All parties live in this process, as separate objects that exchange nothing but messages through a
session's channel. Each step opens a session of its own, with fresh keys from the operating system;
the results do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxfed.communication import Communication
from jaxfed.secure import (
    hamming_masked,
    hamming_matrix,
    hamming_paillier,
    hamming_paillier_paper,
    hamming_transfer,
    hamming_transfer_paper,
    paillier,
    row_sums,
    row_sums_resilient,
)
from jaxfed.secure.blocks import Block
from jaxfed.secure.endpoint import SERVER
from jaxfed.secure.session import Session
from jaxfed.secure.workers import Mapped, worker_processes

Codes = Mapping[int, np.ndarray]  # uint32 [n_j, L / 32] of every client
OwnStep = Callable[[int], None]  # what one client does before its pairs
PairStep = Callable[[int, int], Iterator[Block]]  # the protocol of two clients, the lower one first


class Paillier(NamedTuple):
    """What protocols with Paillier's encryption are given beside the codes: |N| and where tasks run."""

    key_bits: int
    mapped: Mapped


def nearest_others(
    codes: Sequence[np.ndarray],
    num_neighbors: int,
    protocol: str,
    communication: Communication,
    *,
    key_bits: int = 2048,
    workers: int = 0,
    progress: hamming_matrix.Progress | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """SecureHamming among all clients, and each point's k nearest others (lines 5 and 7).

    Args:
        codes: uint32 [n_j, L / 32] a client.
        num_neighbors: k.
        protocol: a key of `PROTOCOLS`.
        communication: gets the bytes of all messages, their frames and the session's setup.
        key_bits: of Paillier's keys, 2048 or 3072; other protocols have none.
        workers: processes that `phe` computes in, 0 for none.
        progress: told how many pairs of points are done.

    Returns:
        (indices, distances), int32 [n, k], as `jaxfed.kernels.knn.hamming_knn` returns them.

    Cost: `launch.bench --kernel=secure_hamming`; 2 n^2 bytes for H at the server.
    """
    session = Session(len(codes))
    by_client = dict(enumerate(codes))
    sizes = {client: len(own) for client, own in by_client.items()}
    num_bits = 32 * codes[0].shape[1]
    server = session.endpoints[SERVER]

    def own(client: int) -> np.ndarray:
        hamming_matrix.send_own(session.endpoints[client], by_client[client])
        distances = hamming_matrix.receive_own(server, client, sizes[client], num_bits)
        prepare(client)
        return distances

    with worker_processes(workers if protocol == "phe" else 0) as mapped:
        prepare, pair = PROTOCOLS[protocol](session, by_client, Paillier(key_bits, mapped))
        matrix = hamming_matrix.collect(sizes, num_bits, own, pair, progress=progress)
    session.channel.count(communication)
    return matrix.nearest(num_neighbors)


def sums_of_rows(
    contributions: Sequence[np.ndarray],
    rows: Sequence[slice],
    communication: Communication,
    *,
    resilient: bool = False,
    progress: row_sums.Progress | None = None,
) -> list[np.ndarray]:
    """SecureRowSums (line 14): client j gets rows R_j of the summed contributions, float64 [n_j, C].

    Args:
        contributions: Z^(j), real [n, C] a client.
        rows: R_j.
        communication: gets the bytes of all messages, their frames and the session's setup.
        resilient: with double masks, so that dropouts need no second round (`row_sums_resilient`).
        progress: told how many clients' uploads are in.
    """
    session = Session(len(contributions))
    by_client = dict(enumerate(rows))
    protocol = row_sums_resilient if resilient else row_sums
    clients = {
        client: protocol.Client(session.endpoints[client], np.asarray(z, np.float64), by_client)
        for client, z in enumerate(contributions)
    }
    num_classes = contributions[0].shape[1]
    if resilient:
        threshold = len(clients) // 2 + 1
        server = row_sums_resilient.Server(
            session.endpoints[SERVER], by_client, num_classes, threshold
        )
        sums = row_sums_resilient.run(clients, server, progress=progress)
    else:
        sums = row_sums.run(
            clients,
            row_sums.Server(session.endpoints[SERVER], by_client, num_classes),
            progress=progress,
        )
    session.channel.count(communication)
    return [sums[client] for client in by_client]


def _masked(session: Session, codes: Codes, _: Paillier) -> tuple[OwnStep, PairStep]:
    sizes = {client: len(own) for client, own in codes.items()}
    run = session.reserve()
    clients = {
        client: hamming_masked.Client(session.endpoints[client], own, sizes, run)
        for client, own in codes.items()
    }
    server = hamming_masked.Server(session.endpoints[SERVER], 32 * codes[0].shape[1])

    def send_points(client: int) -> None:
        hamming_masked.send_points(clients[client], server, client, sizes[client])

    def pair(j: int, k: int) -> Iterator[Block]:
        return hamming_masked.run_pair(clients[j], clients[k], server, (j, k), (sizes[j], sizes[k]))

    return send_points, pair


def _transfer(session: Session, codes: Codes, _: Paillier) -> tuple[OwnStep, PairStep]:
    ends, run = session.endpoints, session.reserve()

    def pair(j: int, k: int) -> Iterator[Block]:
        n_j, n_k, num_bits = len(codes[j]), len(codes[k]), 32 * codes[j].shape[1]
        return hamming_transfer.run_pair(
            hamming_transfer.First(ends[j], k, codes[j], run),
            hamming_transfer.Second(ends[k], j, codes[k], n_j, run),
            hamming_transfer.Server(ends[SERVER], j, k, n_j, num_bits),
            (n_j, n_k, num_bits),
        )

    return _nothing, pair


def _transfer_paper(session: Session, codes: Codes, _: Paillier) -> tuple[OwnStep, PairStep]:
    ends, run = session.endpoints, session.reserve()

    def pair(j: int, k: int) -> Iterator[Block]:
        return hamming_transfer_paper.run_pair(
            hamming_transfer_paper.First(ends[j], k, codes[j], run),
            hamming_transfer_paper.Second(ends[k], j, codes[k], run),
            hamming_transfer_paper.Server(ends[SERVER], j, k, 32 * codes[j].shape[1]),
            (len(codes[j]), len(codes[k])),
        )

    return _nothing, pair


def _paillier(session: Session, codes: Codes, options: Paillier) -> tuple[OwnStep, PairStep]:
    ends, (key_bits, mapped) = session.endpoints, options
    encrypted: dict[int, hamming_paillier.EncryptedPoints] = {}

    def pair(j: int, k: int) -> Iterator[Block]:
        if j not in encrypted:  # once for all partners
            key = paillier.generate_key(key_bits)
            encrypted[j] = hamming_paillier.EncryptedPoints(codes[j], key, mapped=mapped)
        n_j, n_k = len(codes[j]), len(codes[k])
        return hamming_paillier.run_pair(
            hamming_paillier.First(ends[j], k, encrypted[j], mapped=mapped),
            hamming_paillier.Second(ends[k], j, codes[k], n_j, key_bits=key_bits, mapped=mapped),
            hamming_paillier.Server(
                ends[SERVER], j, k, n_j, 32 * codes[j].shape[1], key_bits=key_bits
            ),
            (n_j, n_k),
        )

    return _nothing, pair


def _paillier_paper(session: Session, codes: Codes, options: Paillier) -> tuple[OwnStep, PairStep]:
    ends, key_bits = session.endpoints, options.key_bits
    keys = {client: paillier.generate_key(key_bits) for client in codes}

    def pair(j: int, k: int) -> Iterator[Block]:
        return hamming_paillier_paper.run_pair(
            hamming_paillier_paper.First(ends[j], k, codes[j], keys[j]),
            hamming_paillier_paper.Second(ends[k], j, codes[k], key_bits=key_bits),
            hamming_paillier_paper.Server(
                ends[SERVER], j, k, 32 * codes[j].shape[1], key_bits=key_bits
            ),
            (len(codes[j]), len(codes[k])),
        )

    return _nothing, pair


def _nothing(client: int) -> None:
    """Protocols whose clients do nothing before their pairs."""
    del client


PROTOCOLS: dict[str, Callable[[Session, Codes, Paillier], tuple[OwnStep, PairStep]]] = {
    "phe": _paillier,
    "ot": _transfer,
    "masked": _masked,
    "phe_paper": _paillier_paper,
    "ot_paper": _transfer_paper,
}
