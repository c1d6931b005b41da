"""Secure row sums: one client's work before its upload, and whole rounds of many clients.

A client masks its whole matrix under p - 1 streams. Nanoseconds are per entry and stream, of n C (p - 1).

A round is the work of p clients and the server after key agreement, in one process and without a transport.
Every client has one row of ten classes, so the number of streams dominates, not their length. With single
masks (`jaxfed.secure.row_sums.masked`) there are p (p - 1) streams, and microseconds are per stream; 20 for
the stream and 7 for its 5,000 entries are promised. With double masks (`jaxfed.secure.row_sums.double_masks`)
microseconds are per pair of clients: two or three streams, a key agreement and shares of two secrets. All p
matrices exist at once, 10 MB; double masks take two thirds of a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import ModuleType

import numpy as np

from benchmarks.protocols.loopback import Loopback
from benchmarks.timing.contest import Contest
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums import double_masks, masked
from jaxfed.secure.row_sums.masked import RowSums
from jaxfed.secure.row_sums.masked_rows import masked_rows, pair_masks
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.phases import InProcess

CLIENTS, CLASSES = 500, 10  # of a round
TWISTED = 25  # clients whose masks the peer draws; all would take half a minute


def masking(with_peers: bool) -> Iterator[Contest]:
    """Encoding and masking in Z_2^64 with AES; the peer draws its masks from NumPy's Mersenne twister.

    Federated-learning frameworks do so, but whoever sees some of these masks can compute the others. In a
    round the peer only draws masks and sends nothing.
    """
    for n, num_classes, num_clients in ((2_500, 10, 20), (100_000, 62, 5), (100_000, 62, 20)):
        values = np.random.default_rng(0).random((n, num_classes), np.float32)
        seeds = {partner: bytes([partner]) * 32 for partner in range(1, num_clients)}
        encoding = FixedPoint(num_clients)
        masked_entries = values.size * len(seeds)

        yield Contest(
            task="secure row sums, a client",
            case={"n": n, "classes": num_classes, "clients": num_clients},
            ours=partial(masked_rows, values, encoding, pair_masks(0, seeds)),
            peers={"numpy_twister": partial(_twister, values, encoding, seeds)}
            if with_peers
            else {},
            figures=partial(_an_entry, masked_entries),
            at_most={"ns an entry and peer": 1.8} if n == 100_000 else {},
        )
    matrices = np.random.default_rng(0).random((CLIENTS, CLIENTS, CLASSES), np.float32)
    for masks, protocol in (("single", masked), ("double", double_masks)):
        yield Contest(
            task=f"secure row sums, a round, {masks} masks",
            case={"n": CLIENTS, "classes": CLASSES, "clients": CLIENTS},
            ours=partial(_round, protocol, matrices),
            peers={"numpy_twister": partial(_twister_round, matrices)}
            if with_peers and protocol is masked
            else {},
            parts={"numpy_twister": TWISTED / CLIENTS},
            figures=partial(_a_pair, CLIENTS * (CLIENTS - 1)),
            at_most={"us a client and peer": 27} if protocol is masked else {},
        )


def _an_entry(masked_entries: int, result: np.ndarray, seconds: float) -> dict[str, float]:
    del result
    return {"ns an entry and peer": 1e9 * seconds / masked_entries}


def _a_pair(num_pairs: int, result: RowSums, seconds: float) -> dict[str, float]:
    del result
    return {"us a client and peer": 1e6 * seconds / num_pairs}


def _round(protocol: ModuleType, matrices: np.ndarray) -> RowSums:
    """Return the row sums of matrices float32 [p, p, C], one a client; each client receives one row."""
    network, addresses = Loopback(), range(len(matrices))
    rows = {client: slice(client, client + 1) for client in addresses}
    clients = {
        client: protocol.Client(network.endpoint(client), matrices[client], rows)
        for client in addresses
    }
    sums: RowSums = protocol.run(
        InProcess(clients), protocol.Server(network.endpoint(SERVER), rows, matrices.shape[-1])
    )
    return sums


def _twister(values: np.ndarray, encoding: FixedPoint, seeds: dict[int, bytes]) -> np.ndarray:
    total = encoding.encode(values)
    for partner in seeds:
        draw = np.random.RandomState(partner).randint
        total += draw(0, 2**64 - 1, values.shape, dtype=np.uint64)
    return total


def _twister_round(matrices: np.ndarray) -> None:
    encoding, seeds = FixedPoint(len(matrices)), dict.fromkeys(range(1, len(matrices)), b"")
    for values in matrices[:TWISTED]:
        _twister(values, encoding, seeds)
