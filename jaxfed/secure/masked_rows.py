"""Rows of contributions under masks of streams, in Z_{2^64}.

Client j adds to its encoded rows, for every partner k, the stream G(seed_jk) that both can expand:
j < k adds it, k subtracts it. Over all clients the masks cancel,

    M^(j) = sum_{k > j} G(seed_jk) - sum_{k < j} G(seed_jk),     sum_j M^(j) = 0,

and to whoever knows none of the seeds any p - 1 of the p masked rows are uniform and independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxfed.secure.fixed_point import FixedPoint
from jaxfed.secure.prg import Keystream, buffer_size

ENTRY_BYTES = 8
_BLOCK = 1 << 14  # entries masked at a time: 128 KiB, the fastest of 32 to 512 KiB

Masks = Sequence[tuple[bytes, int]]  # seeds, and +1 or -1 for adding or subtracting their stream


def pair_masks(own: int, seeds: Mapping[int, bytes]) -> Masks:
    """Client `own`'s part of the masks that it shares with the partners {k: seed_jk}."""
    return [(seed, 1 if own < partner else -1) for partner, seed in sorted(seeds.items())]


def stream_starts(num_entries: Mapping[int, int]) -> dict[int, int]:
    """Where in every stream the mask of each client's rows begins, in bytes.

    Args:
        num_entries: entries of the rows of every client that takes part; order does not matter.
    """
    starts, position = {}, 0
    for client, count in sorted(num_entries.items()):
        starts[client] = position
        position += ENTRY_BYTES * (count + count % 2)  # streams can be entered every 16 bytes
    return starts


def masked_rows(
    values: np.ndarray, encoding: FixedPoint, masks: Masks, *, start: int = 0
) -> np.ndarray:
    """encode(values) + masks: uint64, the shape of `values` (real, [n, C]).

    Args:
        values: the rows.
        encoding: range and precision.
        masks: what to add; streams are entered at byte `start`.

    Cost: 1.4 ns an entry and mask, 2 ns an entry to encode; beside the result, 128 KiB.

    Raises:
        UsageError: a value is out of the encoding's range.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    masked = np.empty(flat.size, np.uint64)
    streams, buffer = _streams(masks, start), _buffer()
    for begin in range(0, flat.size, _BLOCK):
        block = masked[begin : begin + _BLOCK]
        encoding.encode(flat[begin : begin + _BLOCK], out=block)
        _add_streams(block, streams, buffer)
    return masked.reshape(values.shape)


def add_masks(elements: np.ndarray, masks: Masks, *, start: int = 0) -> None:
    """Add the masks to contiguous uint64 ring elements, in place."""
    flat = elements.reshape(-1)
    streams, buffer = _streams(masks, start), _buffer()
    for begin in range(0, flat.size, _BLOCK):
        _add_streams(flat[begin : begin + _BLOCK], streams, buffer)


def removed(masks: Masks) -> Masks:
    """The masks that undo these."""
    return [(seed, -sign) for seed, sign in masks]


def _streams(masks: Masks, start: int) -> list[tuple[Keystream, int]]:
    return [(Keystream(seed, start=start), sign) for seed, sign in masks]


def _buffer() -> np.ndarray:
    return np.empty(buffer_size(ENTRY_BYTES * _BLOCK), np.uint8)


def _add_streams(
    block: np.ndarray, streams: Sequence[tuple[Keystream, int]], buffer: np.ndarray
) -> None:
    for stream, sign in streams:
        words = stream.take(block.nbytes, buffer=buffer).view("<u8")
        if sign > 0:
            np.add(block, words, out=block)
        else:
            np.subtract(block, words, out=block)
