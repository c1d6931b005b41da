"""Common part of all protocols between two clients and the server.

Messages to the server name the pair in their kind, `KIND/FIRST/SECOND`, because the server has one channel
with each client for all of that client's pairs. If one client leaves, the pair's protocol ends, and the
messages of the other one are discarded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from jaxfed.errors import DroppedOut
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
