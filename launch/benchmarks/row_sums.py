"""Secure row sums: what one client does before it uploads, its whole matrix under p - 1 masks.

Nanoseconds are of one entry under one mask: of n C (p - 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.row_sums.mask_streams import masked_rows, pair_masks
from launch.benchmarks.contest import Contest


def masking(with_peers: bool) -> Iterator[Contest]:
    """Encoding and masking in Z_2^64 with AES; the peer draws its masks from NumPy's Mersenne twister.

    That is what federated-learning frameworks do; its masks are no secret to who sees some of them.
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


def _an_entry(masked_entries: int, result: np.ndarray, seconds: float) -> dict[str, float]:
    del result
    return {"ns an entry and peer": 1e9 * seconds / masked_entries}


def _twister(values: np.ndarray, encoding: FixedPoint, seeds: dict[int, bytes]) -> np.ndarray:
    total = encoding.encode(values)
    for partner in seeds:
        draw = np.random.RandomState(partner).randint
        total += draw(0, 2**64 - 1, values.shape, dtype=np.uint64)
    return total
