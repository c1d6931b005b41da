"""A session: a channel, the endpoints after setup, and the clients that take part in its protocols.

Here all parties are in one process, for simulations. The subclass for a network (`remote_session`) has the
server's channel alone, and other `Parties`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxfed.errors import DroppedOut, UsageError
from jaxfed.federation.communication import Communication
from jaxfed.secure.session.channel import Channel, Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.neighborhoods import PROMISE, Promise, check_partners
from jaxfed.secure.session.phases import InProcess, Parties
from jaxfed.secure.session.setup import ClientSetup, agree


class Session:
    """All parties of one session: a channel and the endpoints of all parties, after setup.

    Clients that leave during setup are not part of it: setup starts again without them.

    Args:
        num_clients: number of clients; 0 ... p - 1 are invited.
        mask_partners: k, the number of other clients that each one shares keys with, in a sparse session for
            sums (`neighborhoods`); 0, or p - 1 and more: all of them.
        promise: dropouts and collusion that the k partners must withstand.
        presence: departures of clients; all stay if left out.
        random_bytes: source of all keys; the operating system's unless a test replays it.

    Attributes:
        endpoints: by address, the server's included.
        channel: carries all messages.
        contributors: addresses of the clients in the last sum that the server read.
        graph: the partners of a sparse session; None if all pairs share keys.

    Raises:
        UsageError: no clients, or too few partners for the promise.

    Cost: 0.1 ms for each pair of parties that exchange messages, both sides.
    """

    def __init__(
        self,
        num_clients: int,
        *,
        mask_partners: int = 0,
        promise: Promise = PROMISE,
        presence: Presence | None = None,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        if num_clients < 1:
            raise UsageError(f"num_clients={num_clients}: use 1 or more")
        self.num_clients, self.contributors = num_clients, list[int]()
        self.channel = self._connected(presence)
        self._random_bytes, self._next_number = random_bytes, 0
        clients = list(range(num_clients))
        is_sparse = 0 < mask_partners < num_clients - 1
        check_partners(num_clients, mask_partners, promise)
        while True:
            try:
                self.endpoints, self.graph = agree(
                    clients,
                    self.channel,
                    self.source(SERVER),
                    self._joining(clients),
                    mask_partners=mask_partners if is_sparse else 0,
                    promise=promise,
                )
                break
            except DroppedOut:
                clients = self.presence.staying(clients)
                self.channel.lose_unread()
        self._members = sorted(self.graph.neighbors) if self.graph else clients

    def parties(
        self,
        constructor: Callable[..., Any],
        inputs: Mapping[int, Any],
        clients: Sequence[int],
        /,
        **plan: Any,
    ) -> Parties:
        """The clients of one protocol run.

        Each client's object is `constructor(endpoint, input, random_bytes=..., **plan)`.

        Args:
            constructor: a class or function of a module, by whose name another process finds it.
            inputs: the clients' private inputs; not read for clients in other processes.
            clients: the addresses of those that take part.
            plan: the constructor's arguments that the server sends to each client: numbers, strings, and
                lists, slices and mappings of them.
        """
        ends = self.endpoints
        objects = {
            client: constructor(
                ends[client], inputs[client], random_bytes=self.source(client), **plan
            )
            for client in clients
        }
        return InProcess(objects, self.presence)

    def source(self, party: int) -> RandomBytes:
        """The party's source of randomness; in one process, the same for all."""
        del party
        return self._random_bytes

    def _connected(self, presence: Presence | None) -> Channel:
        """The server's channel; in one process, that of all parties."""
        return Channel(presence)

    def _joining(self, clients: Sequence[int]) -> Parties:
        """The clients before setup."""
        objects = {
            client: ClientSetup(client, self.channel, random_bytes=self.source(client))
            for client in clients
        }
        return InProcess(objects, self.presence)

    @property
    def presence(self) -> Presence:
        """Presence of the clients; simulations plan departures with it."""
        return self.channel.presence

    @property
    def clients(self) -> list[int]:
        """Addresses of the clients that are part of the session and have not left."""
        return self.presence.staying(self._members)

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
