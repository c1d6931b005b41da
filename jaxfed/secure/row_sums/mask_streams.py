"""Masking of contributions with pseudorandom streams, in Z_{2^64}.

Client j masks its encoded rows, for every partner k, with the stream G(seed_jk) that both can expand. The
lower of the two adds it, the other one subtracts it. Over all clients the masks cancel,

    M^(j) = sum_{k > j} G(seed_jk) - sum_{k < j} G(seed_jk),     sum_j M^(j) = 0,

and without the seeds any p - 1 of the p masked rows are uniform and independent.

A seed makes one stream, which runs over all rows of a round: p - 1 streams per client, for any number of
owners of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.primitives.prg import Keystream, buffer_size
from jaxfed.secure.row_sums.participants import ENTRY_BYTES

_BLOCK = 1 << 14  # entries masked at a time: 128 KiB, the fastest of 32 to 512 KiB

SignedSeeds = Sequence[
    tuple[bytes, int]
]  # seeds, and +1 or -1 for adding or subtracting their stream


def pair_masks(own: int, seeds: Mapping[int, bytes]) -> SignedSeeds:
    """Masks of client `own` with the partners {k: seed_jk}."""
    return [(seed, 1 if own < partner else -1) for partner, seed in sorted(seeds.items())]


def masked_rows(values: np.ndarray, encoding: FixedPoint, masks: SignedSeeds) -> np.ndarray:
    """encode(values) + masks: uint64, the shape of `values` (real, [n, C]).

    Cost: 1.4 ns an entry and mask, 6 us a mask, 2 ns an entry to encode; 128 KiB in addition to the result.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    masked = np.empty(flat.size, np.uint64)
    streams, buffer = _streams(masks, 0), _buffer(flat.size)
    for begin in range(0, flat.size, _BLOCK):
        block = masked[begin : begin + _BLOCK]
        encoding.encode(flat[begin : begin + _BLOCK], out=block)
        _add_streams(block, streams, buffer)
    return masked.reshape(values.shape)


def add_masks(elements: np.ndarray, masks: SignedSeeds, *, first: int = 0) -> None:
    """Add the masks to contiguous uint64 ring elements, in place; they begin at entry `first`."""
    flat = elements.reshape(-1)
    streams, buffer = _streams(masks, first), _buffer(flat.size)
    for begin in range(0, flat.size, _BLOCK):
        _add_streams(flat[begin : begin + _BLOCK], streams, buffer)


def removed(masks: SignedSeeds) -> SignedSeeds:
    """The masks that undo these."""
    return [(seed, -sign) for seed, sign in masks]


def _streams(masks: SignedSeeds, first: int) -> list[tuple[Keystream, int]]:
    streams = []
    for seed, sign in masks:
        stream = Keystream(seed, start=16 * (first // 2))  # a block is two entries
        if first % 2:
            stream.words(1)
        streams.append((stream, sign))
    return streams


def _buffer(num_entries: int) -> np.ndarray:
    return np.empty(buffer_size(ENTRY_BYTES * min(num_entries, _BLOCK)), np.uint8)


def _add_streams(
    block: np.ndarray, streams: Sequence[tuple[Keystream, int]], buffer: np.ndarray
) -> None:
    for stream, sign in streams:
        words = stream.take(block.nbytes, buffer=buffer).view("<u8")
        if sign > 0:
            np.add(block, words, out=block)
        else:
            np.subtract(block, words, out=block)
