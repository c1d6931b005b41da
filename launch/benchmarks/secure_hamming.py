"""Secure Hamming distances between two clients and a server, all three parties' work in one process.

For one core: taskset -c 0 python -m launch.bench --kernel=secure_hamming,row_sums --peers
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from jaxfed.secure import hamming_masked, hamming_transfer, transfer_extension
from jaxfed.secure.blocks import bits_of
from jaxfed.secure.endpoint import SERVER
from jaxfed.secure.oblivious_transfer import TransferReceiver, transfer_keys
from launch.benchmarks import inputs
from launch.benchmarks.contest import Contest
from launch.benchmarks.loopback import Loopback


def distances(with_peers: bool) -> Iterator[Contest]:
    """Base transfers; then `ot` and `masked` at 4096 and 1024 bits.

    The peer is the plaintext as one float32 matrix product of NumPy, bits unpacked: what the server
    would compute if it had them. Targets are ours: `masked` within 8 times of it.
    """
    yield Contest(
        task="base oblivious transfers",
        case={"transfers": transfer_extension.NUM_BASE},
        ours=_base_transfers,
    )
    for name, protocol, n, m, target in (
        ("ot", _transferred, 500, 100, None),
        ("masked", _masked, 500, 500, 1 / 8),
        ("masked", _masked, 2000, 2000, 1 / 8),
    ):
        for num_bits in (4096, 1024):
            a, b = (np.asarray(inputs.codes(size, num_bits, "uniform")) for size in (n, m))
            peers: dict[str, Callable[[], Any]] = (
                {"numpy_plaintext": partial(_plaintext, a, b)} if with_peers else {}
            )
            yield Contest(
                task=f"secure Hamming, {name}",
                case={"n": n, "m": m, "num_bits": num_bits},
                ours=partial(protocol, a, b),
                peers=peers,
                agreement=_equal,
                targets={"numpy_plaintext": target} if target else {},
            )


def _base_transfers() -> list[bytes]:
    choices = [number % 2 for number in range(transfer_extension.NUM_BASE)]
    receiver = TransferReceiver(choices, b"benchmark")
    response, _ = transfer_keys(receiver.request, len(choices), b"benchmark")
    return receiver.keys(response)


def _transferred(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    network, num_bits = Loopback(), 32 * a.shape[1]
    blocks = hamming_transfer.run_pair(
        hamming_transfer.First(network.endpoint(0), 1, a, 0),
        hamming_transfer.Second(network.endpoint(1), 0, b, len(a), 0),
        hamming_transfer.Server(network.endpoint(SERVER), 0, 1, len(a), num_bits),
        (len(a), len(b), num_bits),
    )
    return np.concatenate([block.distances for block in blocks], axis=1)


def _masked(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    network, sizes = Loopback(), {0: len(a), 1: len(b)}
    first, second = (
        hamming_masked.Client(network.endpoint(address), codes, sizes, 0)
        for address, codes in enumerate((a, b))
    )
    server = hamming_masked.Server(network.endpoint(SERVER), 32 * a.shape[1])
    hamming_masked.send_points(first, server, 0, sizes[0])
    hamming_masked.send_points(second, server, 1, sizes[1])
    found = np.empty((len(a), len(b)), np.uint16)
    for block in hamming_masked.run_pair(first, second, server, (0, 1), (len(a), len(b))):
        rows, columns = block.rows, block.columns
        found[rows.start : rows.stop, columns.start : columns.stop] = block.distances
    return found


def _plaintext(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    x, y = bits_of(a).astype(np.float32), bits_of(b).astype(np.float32)
    return (x.sum(axis=1)[:, None] + y.sum(axis=1) - 2 * (x @ y.T)).astype(np.uint16)


def _equal(ours: np.ndarray, theirs: np.ndarray) -> str:
    assert np.array_equal(ours, theirs), "secure distances differ from the plaintext's"
    return "equal"
