"""A session with all its parties in one process, for simulations."""

from __future__ import annotations

import secrets

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication
from jaxfed.federation.departures import DroppedOut
from jaxfed.secure.session.channel import Channel, Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.setup import agree


class Session:
    """All parties of one session: a channel and the endpoints of all parties, after setup.

    Clients that leave during setup are not part of it: setup starts again without them.

    Args:
        num_clients: number of clients; 0 ... p - 1 are invited.
        presence: departures of clients; all stay if left out.
        random_bytes: source of all keys; the operating system's unless a test replays it.

    Attributes:
        endpoints: by address, the server's included.
        channel: carries all messages.

    Raises:
        UsageError: no clients.

    Cost: 0.1 ms a pair of parties, both sides.
    """

    def __init__(
        self,
        num_clients: int,
        *,
        presence: Presence | None = None,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        if num_clients < 1:
            raise UsageError(f"num_clients={num_clients}: use 1 or more")
        self.num_clients = num_clients
        self.channel = Channel(presence)
        self._next_number = 0
        clients = list(range(num_clients))
        while True:
            try:
                self.endpoints = agree(clients, self.channel, random_bytes)
                break
            except DroppedOut as dropout:
                clients.remove(dropout.client)
                self.channel.lose_unread()

    @property
    def presence(self) -> Presence:
        """Presence of the clients; simulations plan departures with it."""
        return self.channel.presence

    @property
    def clients(self) -> list[int]:
        """Addresses of the clients that are part of the session and have not left."""
        return sorted(self.endpoints.keys() - self.presence.gone - {SERVER})

    def reserve(self, count: int = 1) -> int:
        """The first of `count` numbers that no protocol run of this session has used."""
        first = self._next_number
        self._next_number += count
        return first

    def communication(self) -> Communication:
        """Traffic of the channel."""
        total = Communication()
        self.channel.count(total)
        return total
