"""The only way between parties: messages as bytes, every one of them counted; and who is still there.

Clients have no connection with each other: what one sends another passes the server, which can read the
header and counts as having carried it. A client's message to a client therefore costs an upload and a
download.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Literal, NamedTuple

from jaxfed.federation.communication import Communication
from jaxfed.secure.session import framing
from jaxfed.secure.session.endpoint import SERVER, DroppedOut

Action = Literal["send", "receive"]


class Departure(NamedTuple):
    """When a client leaves: before it does `action` with a kind, once it has done so `after` times."""

    action: Action
    kind: str
    after: int


class Presence:
    """Which clients are gone, and for simulations which ones will be, and when."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self._planned: dict[int, Departure] = {}

    def lose(self, client: int) -> None:
        """The client is gone from now on."""
        self.gone.add(client)

    def lose_when(self, client: int, action: Action, kind: str, *, after: int = 0) -> None:
        """The client will be gone when it is to send or receive messages of this kind.

        Args:
            client: its address.
            action: "send" or "receive".
            kind: a kind, or its beginning.
            after: how many it still sends or receives.
        """
        self._planned[client] = Departure(action, kind, after)

    def act(self, party: int, action: Action, kind: str) -> None:
        """A party is about to act.

        Raises:
            DroppedOut: it is gone.
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
    """How much went along a route; `num_bytes` counts all, `payload_bytes` leaves out framing and tags."""

    messages: int = 0
    payload_bytes: int = 0
    num_bytes: int = 0


class Channel:
    """Queues of messages from each party to each other, and what went through them.

    Args:
        presence: who is gone, or will be; everybody stays if left out.

    Attributes:
        presence: the same.
        volumes: how much went along every route.
    """

    def __init__(self, presence: Presence | None = None) -> None:
        self.presence = presence or Presence()
        self.volumes: defaultdict[Route, Volume] = defaultdict(Volume)
        self._queues: defaultdict[tuple[int, int], deque[bytes | bytearray]] = defaultdict(deque)

    def send(self, message: bytes | bytearray) -> None:
        """Carry a message to the receiver that its header names.

        Raises:
            ProtocolError: it has no such header.
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
        """Whatever waits is lost: what it belonged to was given up."""
        self._queues.clear()

    def count(self, communication: Communication) -> None:
        """Add all payloads by kind, and what surrounds them as "framing".

        What follows a slash in a kind, the pair or the round it belongs to, does not count.
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
