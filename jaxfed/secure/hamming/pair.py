"""Common part of all protocols between two clients and the server.

Messages to the server name the pair in their kind, `KIND/FIRST/SECOND`, because the server has one channel
with each client for all of that client's pairs. If one client leaves, the pair's protocol ends, and the
messages of the other one are discarded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar

from jaxfed.federation.departures import DroppedOut
from jaxfed.secure.primitives.blocks import Block
from jaxfed.secure.primitives.ring import ring_bits
from jaxfed.secure.session.endpoint import Endpoint

First = TypeVar("First")
Second = TypeVar("Second")
Server = TypeVar("Server", bound="PairServer")
Sizes = TypeVar("Sizes", bound=tuple[int, ...])
Exchange = Callable[[First, Second, Server, Sizes], Iterator[Block]]


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

    def abandon(self) -> None:
        """Discard the messages of the pair after one of its clients has left."""
        for kind in self.KINDS:
            self._endpoint.discard(self._kind(kind))

    def _receive(self, client: int, kind: str) -> bytes:
        return self._endpoint.receive(client, self._kind(kind))

    def _kind(self, kind: str) -> str:
        return pair_kind(kind, self._first, self._second)


def until_dropout(
    exchange: Exchange[First, Second, Server, Sizes],
) -> Exchange[First, Second, Server, Sizes]:
    """Wrap a pair's exchange: no blocks if a client has no points, and clean up after a dropout."""

    @functools.wraps(exchange)
    def run_pair(first: First, second: Second, server: Server, sizes: Sizes) -> Iterator[Block]:
        if not all(sizes):
            return
        try:
            yield from exchange(first, second, server, sizes)
        except DroppedOut:
            server.abandon()
            raise

    return run_pair
