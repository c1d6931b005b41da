"""The little that an exchange needs of a network; Flower's grid (`grid_messages`) and tests provide it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from jaxfed.flower.messages.records import Record


class Arrival(NamedTuple):
    """A reply, or news that there will be none.

    Attributes:
        reply_to: the request's identifier; it alone says whose reply this is, because news of a lost node
            comes from the network.
        node: the sender of a reply, 0 with a problem.
        record: content of the reply; None with a problem.
        problem: why there is no content, one line; "" if there is.
        may_retry: sending the same again may help.
    """

    reply_to: str
    node: int
    record: Record | None
    problem: str = ""
    may_retry: bool = False


class Network(Protocol):
    """Messages between one server and numbered nodes."""

    def nodes(self) -> list[int]:
        """List the nodes that are connected now."""

    def send(self, requests: Sequence[tuple[int, Record]], seconds: float) -> list[str]:
        """Send (node, record) each, whose reply is worthless after `seconds`.

        Returns an identifier of each request, "" for one that cannot be delivered.
        """

    def receive(self, identifiers: Iterable[str]) -> list[Arrival]:
        """Fetch, without waiting, what has arrived for these requests."""
