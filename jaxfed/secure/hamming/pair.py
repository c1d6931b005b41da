"""What every protocol of two clients and the server has around its messages.

What they send the server carries the pair in its kind, `KIND/FIRST/SECOND`: it has one channel with each
client for all of that client's pairs. A client that is gone ends the pair, and what the other one has
sent stands alone and is forgotten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar

from jaxfed.secure.primitives.blocks import Block
from jaxfed.secure.primitives.ring import ring_bits
from jaxfed.secure.session.endpoint import DroppedOut, Endpoint

First = TypeVar("First")
Second = TypeVar("Second")
Server = TypeVar("Server", bound="PairServer")
Sizes = TypeVar("Sizes", bound=tuple[int, ...])
Exchange = Callable[[First, Second, Server, Sizes], Iterator[Block]]


def pair_kind(kind: str, first: int, second: int) -> str:
    """The kind under which one of two clients sends the server something."""
    return f"{kind}/{first}/{second}"


class PairServer:
    """The server's end of one pair of clients; a protocol says in `KINDS` what they send it.

    Raises:
        UsageError: L does not fit the ring.
    """

    KINDS: ClassVar[tuple[str, ...]]

    def __init__(self, endpoint: Endpoint, first: int, second: int, num_bits: int) -> None:
        ring_bits(num_bits)  # distances travel as uint16
        self._endpoint, self._first, self._second = endpoint, first, second
        self._num_bits = num_bits

    def abandon(self) -> None:
        """A client is gone: what the other one sent stands alone and is forgotten."""
        for kind in self.KINDS:
            self._endpoint.discard(self._kind(kind))

    def _receive(self, client: int, kind: str) -> bytes:
        return self._endpoint.receive(client, self._kind(kind))

    def _kind(self, kind: str) -> str:
        return pair_kind(kind, self._first, self._second)


def until_dropout(
    exchange: Exchange[First, Second, Server, Sizes],
) -> Exchange[First, Second, Server, Sizes]:
    """The blocks of distances that a pair's messages bring; none where a client has no points."""

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
