"""The only connection between parties: a channel that counts every message, and the clients that are present.

Clients have no connection with each other. A message between clients passes through the server, which can
read the header and is counted as having carried it. It therefore costs an upload and a download.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from jaxfed.federation.communication import Communication
from jaxfed.federation.departures import Action as Action
from jaxfed.federation.departures import DroppedOut
from jaxfed.secure.session import framing
from jaxfed.secure.session.endpoint import SERVER


class EndpointLeft(NamedTuple):
    """A planned departure: before `action` with messages of a kind, after `after` such actions."""

    action: Action
    kind: str
    after: int


class Presence:
    """Clients that have left, and for simulations planned departures."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self._planned: dict[int, EndpointLeft] = {}

    def lose(self, client: int) -> None:
        """Mark the client as gone from now on."""
        self.gone.add(client)

    def lose_when(self, client: int, action: Action, kind: str, *, after: int = 0) -> None:
        """Plan that the client leaves when it is to send or receive messages of this kind.

        Args:
            client: its address.
            action: "send" or "receive".
            kind: a kind, or its beginning.
            after: number of such messages that it still sends or receives.
        """
        self._planned[client] = EndpointLeft(action, kind, after)

    def act(self, party: int, action: Action, kind: str) -> None:
        """Register that a party is about to act.

        Raises:
            DroppedOut: it has left.
        """
        plan = self._planned.get(party)
        if plan and plan.action == action and kind.startswith(plan.kind):
            if plan.after == 0:
                self.lose(party)
            self._planned[party] = plan._replace(after=plan.after - 1)
        if party in self.gone:
            raise DroppedOut(party)


class Route(NamedTuple):
    """Messages of one kind from one party to another."""

    sender: int
    receiver: int
    kind: str


class Volume(NamedTuple):
    """Traffic on a route; `num_bytes` counts everything, `payload_bytes` is without framing and tags."""

    messages: int = 0
    payload_bytes: int = 0
    num_bytes: int = 0


class Channel:
    """Queues of messages from each party to each other, and their traffic.

    Args:
        presence: departures of clients; all stay if left out.

    Attributes:
        presence: the same.
        volumes: traffic on every route.
    """

    def __init__(self, presence: Presence | None = None) -> None:
        self.presence = presence or Presence()
        self.volumes: defaultdict[Route, Volume] = defaultdict(Volume)
        self._queues: defaultdict[tuple[int, int], deque[bytes | bytearray]] = defaultdict(deque)

    def send(self, message: bytes | bytearray) -> None:
        """Carry a message to the receiver that its header names.

        Raises:
            ProtocolError: the header is invalid.
        """
        header = framing.parsed(message).header
        route = Route(header.sender, header.receiver, header.kind)
        before = self.volumes[route]
        self.volumes[route] = Volume(
            before.messages + 1,
            before.payload_bytes + header.size,
            before.num_bytes + len(message),
        )
        self._queues[header.sender, header.receiver].append(message)

    def receive(self, sender: int, receiver: int) -> bytes | bytearray | None:
        """The next message from one party to another, None when there is none."""
        queue = self._queues[sender, receiver]
        return queue.popleft() if queue else None

    def lose_unread(self) -> None:
        """Discard all unread messages, after their run was aborted."""
        self._queues.clear()

    def count(self, communication: Communication) -> None:
        """Add all payloads by kind, and everything else as "framing".

        The part of a kind after a slash, its pair or round, is ignored.
        """
        for route, volume in self.volumes.items():
            kind = route.kind.partition("/")[0]
            for is_theirs, count in (
                (route.sender != SERVER, communication.up),
                (route.receiver != SERVER, communication.down),
            ):
                if is_theirs:
                    count(kind, volume.payload_bytes)
                    count("framing", volume.num_bytes - volume.payload_bytes)
