"""Splitting of long work into blocks, for bounded memory and for progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxfed.errors import ProtocolError


class Block(NamedTuple):
    """Distances of some of client `first`'s points (rows) to some of `second`'s (columns).

    Fields:
        first, second: the two clients.
        rows, columns: the numbers of their points.
        distances: uint16 [rows, columns].
    """

    first: int
    second: int
    rows: range
    columns: range
    distances: np.ndarray


class SharesDisagree(ProtocolError):
    """Two clients' messages give no distances; one of them is wrong, and the server cannot tell which."""


def ranges(count: int, size: int) -> Iterator[range]:
    """0 ... count - 1 in pieces of at most `size`."""
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


def bits_of(codes: np.ndarray) -> np.ndarray:
    """Packed codes uint32 [n, L / 32] as uint8 [n, L] of 0 and 1, least significant bit first."""
    little = np.ascontiguousarray(codes, "<u4").view(np.uint8)
    return np.unpackbits(little, axis=1, bitorder="little")


def checked_distances(distances: np.ndarray, num_bits: int) -> np.ndarray:
    """Return the distances after a check of their range."""
    if distances.size and int(distances.max()) > num_bits:
        raise ProtocolError(
            f"the shares give a distance above {num_bits}: they do not fit together"
        )
    return distances
