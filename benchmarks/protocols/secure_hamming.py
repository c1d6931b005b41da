"""Secure Hamming distances between two clients and a server, all three parties' work in one process.

Seconds and bytes are totals over all parties. Bytes are those of payloads, without the frame of a sealed
message (65 bytes and the length of its kind). On one core:

    taskset -c 0 python -m launch.bench --kernel=secure_hamming,row_sums --peers
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import inputs
from benchmarks.protocols.loopback import (
    Loopback,
    Run,
    a_pair,
    equal,
    joined,
    plaintext,
    promised,
)
from benchmarks.timing.contest import Contest
from jaxfed.secure.hamming import masked, transfer
from jaxfed.secure.primitives import oblivious_transfer
from jaxfed.secure.primitives.oblivious_transfer import TransferReceiver, transfer_keys
from jaxfed.secure.session.endpoint import SERVER

# (protocol, n, m, L) -> promised microseconds and bytes per pair, if any.
_CASES: dict[tuple[str, int, int, int], tuple[float, ...]] = {
    ("ot", 500, 100, 4096): (25, 8400),
    ("ot", 500, 100, 1024): (),
    ("masked", 500, 500, 4096): (1, 30),
    ("masked", 500, 500, 1024): (),
    ("masked", 2000, 2000, 4096): (1, 30),
    ("masked", 2000, 2000, 1024): (),
}


def distances(with_peers: bool) -> Iterator[Contest]:
    """Base transfers, `ot` and `masked` at 4096 and 1024 bits, then `phe`.

    The peer is the plaintext as one float32 matrix product of NumPy, bits unpacked: what the server
    would compute if it had them. Targets are ours: `masked` within 8 times of it.
    """
    yield Contest(
        task="base oblivious transfers",
        case={"transfers": oblivious_transfer.NUM_BASE},
        ours=_base_transfers,
        figures=lambda _, seconds: {"ms": 1e3 * seconds},
        at_most={"ms": 40},
    )
    for (name, n, m, num_bits), costs in _CASES.items():
        a, b = (np.asarray(inputs.codes(size, num_bits, "uniform")) for size in (n, m))
        peers: dict[str, Callable[[], Any]] = (
            {"numpy_plaintext": partial(plaintext, a, b)} if with_peers else {}
        )
        yield Contest(
            task=f"secure Hamming, {name}",
            case={"n": n, "m": m, "num_bits": num_bits},
            ours=partial(_PROTOCOLS[name], a, b),
            peers=peers,
            agreement=equal,
            targets={"numpy_plaintext": 1 / 8} if name == "masked" else {},
            figures=a_pair,
            at_most=promised(*costs),
        )
    try:
        from benchmarks.protocols import secure_hamming_paillier
    except ImportError as error:
        print(
            f"bench: phe left out, {error.name} is not installed (pip install -r requirements.txt)",
            file=sys.stderr,
        )
        return
    yield from secure_hamming_paillier.distances(with_peers)


def _base_transfers() -> list[bytes]:
    choices = [number % 2 for number in range(oblivious_transfer.NUM_BASE)]
    receiver = TransferReceiver(choices, b"benchmark")
    response, _ = transfer_keys(receiver.request, len(choices), b"benchmark")
    return receiver.keys(response)


def _transferred(a: np.ndarray, b: np.ndarray) -> Run:
    network, num_bits = Loopback(), 32 * a.shape[1]
    blocks = transfer.run_pair(
        transfer.First(network.endpoint(0), 1, a, 0),
        transfer.Second(network.endpoint(1), 0, b, len(a), 0),
        transfer.Server(network.endpoint(SERVER), 0, 1, len(a), num_bits),
        (len(a), len(b), num_bits),
    )
    return Run(joined(blocks, (len(a), len(b))), network.num_bytes)


def _masked(a: np.ndarray, b: np.ndarray) -> Run:
    network, sizes = Loopback(), {0: len(a), 1: len(b)}
    first, second = (
        masked.Client(network.endpoint(address), codes, sizes=sizes, run=0)
        for address, codes in enumerate((a, b))
    )
    server = masked.Server(network.endpoint(SERVER), 32 * a.shape[1])
    for address, client in enumerate((first, second)):
        masked.receive_points(client.send_points(), server, address, sizes[address])
    shares = first.send_shares(1), second.send_shares(0)
    blocks = masked.run_pair(*shares, server, (0, 1), (len(a), len(b)))
    return Run(joined(blocks, (len(a), len(b))), network.num_bytes)


_PROTOCOLS = {"ot": _transferred, "masked": _masked}
