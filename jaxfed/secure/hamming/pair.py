"""Common part of all protocols between two clients and the server.

Messages to the server name the pair in their kind, `KIND/FIRST/SECOND`, because the server has one channel
with each client for all of that client's pairs. If one client leaves, the pair's protocol ends, and the
messages of the other one are discarded.
Long work is split into blocks of points, for bounded memory and for progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import numpy as np

from jaxfed.errors import DroppedOut, ProtocolError
from jaxfed.secure.primitives.ring import ring_bits
from jaxfed.secure.session.endpoint import Endpoint


def pair_kind(kind: str, first: int, second: int) -> str:
    """The kind of a message from one of two clients to the server."""
    return f"{kind}/{first}/{second}"


class PairServer:
    """The server's part for one pair of clients; a protocol lists their messages to it in `KINDS`."""

    KINDS: ClassVar[tuple[str, ...]]

    def __init__(self, endpoint: Endpoint, first: int, second: int, num_bits: int) -> None:
        ring_bits(num_bits)  # distances travel as uint16
        self._endpoint, self._first, self._second = endpoint, first, second
        self._num_bits = num_bits

    @contextmanager
    def until_dropout(self) -> Iterator[None]:
        """Discard the messages of the pair if one of its clients leaves."""
        try:
            yield
        except DroppedOut:
            for kind in self.KINDS:
                self._endpoint.discard(pair_kind(kind, self._first, self._second))
            raise

    def _receive(self, client: int, kind: str) -> bytes:
        return self._endpoint.receive(client, pair_kind(kind, self._first, self._second))


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
