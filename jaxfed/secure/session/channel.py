"""The only connection between parties: a channel that counts every message, and the clients that are present.

Clients have no connection with each other. A message between clients passes through the server, which can
read the header and is counted as having carried it. It therefore costs an upload and a download.

Simulations plan departures by stage of a run, ("3@upload",): client 3 leaves before its upload. Numbers are
those of the federation; an entry for a client outside a round's cohort has no effect. Each method defines its
stages. `Presence` has a client leave at any single message.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple

from absl import logging

from jaxfed.errors import DroppedOut, ProtocolError, UsageError
from jaxfed.federation.communication import Communication
from jaxfed.secure.session import framing
from jaxfed.secure.session.endpoint import SERVER

Action = Literal["send", "receive"]
_ENTRY = re.compile(r"(\d+)@(\w+)", re.ASCII)


# A stage begins when a client is to do the action with this kind of message; the settings that it needs.
Stage = tuple[Action, str, str]


class Departure(NamedTuple):
    """A client, and the stage that it leaves at."""

    client: int
    stage: str


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

    def staying(self, clients: Iterable[int]) -> list[int]:
        """Return those of these clients that have not left."""
        return [client for client in clients if client not in self.gone]

    @contextmanager
    def losing(self, sender: int) -> Iterator[None]:
        """Lose the client whose message the server refuses, as if it had left.

        Raises:
            DroppedOut: instead of a `ProtocolError`.
        """
        try:
            yield
        except ProtocolError as error:
            logging.warning("client %d is lost, its message is refused: %s", sender, error)
            self.lose(sender)
            raise DroppedOut(sender) from error


def departures_of(
    entries: Sequence[str], stages: Mapping[str, Stage], key: str, owner: str = ""
) -> list[Departure]:
    """Parse the entries 'CLIENT@STAGE' of the setting `key` of `owner`.

    Raises:
        UsageError: an invalid entry, with what is allowed; a client that leaves twice.
    """
    refused = partial(UsageError, key=key, owner=owner)
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise refused(value=entries, allowed="use a tuple of 'CLIENT@STAGE'")
    departures = dict[int, str]()
    for entry in entries:
        matched = _ENTRY.fullmatch(entry) if isinstance(entry, str) else None
        if matched is None or matched[2] not in stages:
            example, names = f"3@{list(stages)[-1]}", ", ".join(stages)
            allowed = f"use 'CLIENT@STAGE', such as '{example}', with stages {names}"
            raise refused(value=entry, allowed=allowed)
        if int(matched[1]) in departures:
            wrong = f"client {matched[1]} leaves at two stages"
            raise refused(wrong, value=tuple(entries), allowed="name it once")
        departures[int(matched[1])] = matched[2]
    return [Departure(*each) for each in departures.items()]


def check_departures(departures: Sequence[Departure], num_clients: int, key: str) -> None:
    """Raise a UsageError if a client that is to leave does not exist."""
    most = max((one.client for one in departures), default=-1)
    if most >= num_clients:
        raise UsageError(
            f"client {most}: at most {num_clients - 1} of {num_clients} clients", key=key
        )


def presence_of(
    departures: Sequence[Departure], clients: Sequence[int], stages: Mapping[str, Stage]
) -> Presence:
    """Planned departures of a session, whose `clients` are the federation's numbers in its order."""
    presence = Presence()
    for client, stage in departures:
        if client in clients:
            action, kind, _ = stages[stage]
            presence.lose_when(list(clients).index(client), action, kind)
    return presence


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

    Attributes:
        presence: the same.
        volumes: traffic on every route.
    """

    def __init__(self, presence: Presence | None = None) -> None:
        self.presence = presence or Presence()
        self.volumes: defaultdict[Route, Volume] = defaultdict(Volume)
        self._queues: defaultdict[tuple[int, int], deque[bytes | bytearray]] = defaultdict(deque)

    @staticmethod
    def of_party(address: int, presence: Presence | None = None) -> OwnChannel:
        """The channel of one party whose partners are in other processes."""
        return OwnChannel(address, presence)

    def send(self, message: bytes | bytearray) -> None:
        """Carry a message to the receiver that its header names."""
        header = framing.parsed(message).header
        route = Route(header.sender, header.receiver, header.kind)
        before = self.volumes[route]
        self.volumes[route] = Volume(
            before.messages + 1, before.payload_bytes + header.size, before.num_bytes + len(message)
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


class OwnChannel(Channel):
    """One party's channel: frames that arrive are fed to it, and frames to be carried taken out of it.

    The server's channel also relays frames between clients. A frame is counted once, as in `Channel`.
    """

    def __init__(self, address: int, presence: Presence | None = None) -> None:
        super().__init__(presence)
        self._address = address
        self._outgoing: defaultdict[int, list[bytes | bytearray]] = defaultdict(list)

    def feed(self, frames: Iterable[bytes | bytearray], sender: int | None = None) -> None:
        """Take in frames that have arrived, of client `sender` at the server; those of others are refused."""
        for frame in frames:
            header = framing.parsed(frame).header
            if sender is not None and header.sender != sender:
                raise ProtocolError(f"a frame of client {header.sender} that {sender} sent")
            if self._address != SERVER and header.receiver != self._address:
                raise ProtocolError(f"a frame for {header.receiver} that {self._address} received")
            super().send(frame)
            self._sort_out(header)

    def send(self, message: bytes | bytearray) -> None:
        """Keep a message until it is taken out (`emptied`)."""
        super().send(message)
        self._sort_out(framing.parsed(message).header)

    def emptied(self, receiver: int | None = None) -> list[bytes | bytearray]:
        """Take out the frames that others are to receive, in order: one receiver's, or all of them.

        A client gives all of its frames to the server; the server has some for each client.
        """
        receivers = list(self._outgoing) if receiver is None else [receiver]
        return [frame for each in receivers for frame in self._outgoing.pop(each, [])]

    def lose_unread(self) -> None:
        """Discard all unread messages, and those that have not been carried."""
        super().lose_unread()
        self._outgoing.clear()

    def _sort_out(self, header: framing.Header) -> None:
        """Move the last frame of a route to the outgoing ones if another party is to receive it."""
        if header.receiver != self._address:
            frame = self._queues[header.sender, header.receiver].pop()
            self._outgoing[header.receiver].append(frame)
