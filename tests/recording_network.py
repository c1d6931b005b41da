"""A network of endpoints for tests: records every message, loses clients, changes bytes on request."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

from jaxfed.errors import DroppedOut, ProtocolError
from jaxfed.secure.primitives.prg import derived_seed
from jaxfed.secure.session.endpoint import SERVER


class Message(NamedTuple):
    sender: int
    receiver: int
    kind: str
    payload: bytes


class Network:
    """Endpoints whose seeds derive from `secret`, by label; sessions differ by their secret."""

    def __init__(self, secret: bytes = b"session") -> None:
        self.secret = secret
        self.log: list[Message] = []
        self.queues: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self.leaving: dict[int, tuple[str, str, int]] = {}  # client: (action, kind, times before)
        self.gone: set[int] = set()
        self.tamper: Callable[[Message], bytes] = lambda message: message.payload

    def endpoint(self, address: int) -> Endpoint:
        return Endpoint(self, address)

    def leave(self, client: int, action: str, kind: str = "", after: int = 0) -> None:
        """The client is gone when it is to `action` ("send", "receive") that kind once more."""
        self.leaving[client] = action, kind, after

    def bytes_by_kind(self, *, skip: str = "/") -> dict[str, int]:
        """Payload bytes; what follows `skip` in a kind (a round's number) does not count."""
        total: dict[str, int] = defaultdict(int)
        for message in self.log:
            total[message.kind.partition(skip)[0]] += len(message.payload)
        return dict(total)

    def seen_by(self, address: int) -> list[Message]:
        return [message for message in self.log if message.receiver == address]

    def act(self, client: int, action: str, kind: str) -> None:
        rule = self.leaving.get(client)
        if rule and rule[0] == action and kind.startswith(rule[1]):
            if rule[2] == 0:
                self.gone.add(client)
            self.leaving[client] = rule[0], rule[1], rule[2] - 1
        if client in self.gone:
            raise DroppedOut(client)


class Endpoint:
    def __init__(self, network: Network, address: int) -> None:
        self.network, self.address = network, address
        self.claimed: set[str] = set()

    def send(self, receiver: int, kind: str, payload: bytes) -> None:
        self.network.act(self.address, "send", kind)
        message = Message(self.address, receiver, kind, bytes(payload))
        self.network.log.append(message)
        message = message._replace(payload=self.network.tamper(message))
        self.network.queues[self.address, receiver].append(message)

    def receive(self, sender: int, kind: str) -> bytes:
        self.network.act(self.address, "receive", kind)
        queue = self.network.queues[sender, self.address]
        if not queue:
            raise ProtocolError(f"no message from {sender}")
        message = queue.popleft()
        if message.kind != kind:
            raise ProtocolError(f"{message.kind!r} where {kind!r} was due")
        return message.payload

    def discard(self, kind: str) -> None:
        for (_, receiver), queue in self.network.queues.items():
            if receiver == self.address:
                kept = [message for message in queue if message.kind != kind]
                queue.clear()
                queue.extend(kept)

    def group_seed(self, label: str) -> bytes:
        assert self.address != SERVER
        return derived_seed(self.network.secret, f"group/{label}")

    def pair_seed(self, partner: int, label: str) -> bytes:
        assert SERVER not in (self.address, partner)
        assert partner != self.address
        low, high = sorted((self.address, partner))
        return derived_seed(self.network.secret, f"pair/{low}/{high}/{label}")

    def claim(self, label: str) -> None:
        if label in self.claimed:
            raise ProtocolError(f"{label!r} was used before")
        self.claimed.add(label)
