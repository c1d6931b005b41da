"""The server's session whose clients are in other processes: one exchange a phase.

    session = RemoteSession(num_clients, carry, {masked.client: "votes"})

`carry` sends each client its message and returns the frames of those that answer. One that does not has left.
`ReplayedParty` is a client's side. Quiet steps wait for the next exchange; `flush` sends the last ones.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxfed.errors import DroppedOut
from jaxfed.secure.session import remote_calls
from jaxfed.secure.session.channel import Channel, OwnChannel, Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.phases import Arguments, Parties, Stream
from jaxfed.secure.session.remote_calls import Call, CallMessage

# (name of the exchange, call message of each client) -> packed frames of each client that answers
Carry = Callable[[str, Mapping[int, bytes]], Mapping[int, bytes]]
Roles = Mapping[Callable[..., Any], str]


class RemoteSession(Session):
    """A session over a network, at the server.

    Args:
        num_clients: number of clients that are invited.
        carry: exchanges messages for frames.
        roles: names of the clients' objects, by the constructors that drivers pass to `parties`.
        mask_partners: as in `Session`.
        random_bytes: source of the server's keys.
    """

    channel: OwnChannel

    def __init__(
        self,
        num_clients: int,
        carry: Carry,
        roles: Roles,
        *,
        mask_partners: int = 0,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._carry, self._roles, self._number = carry, roles, 0
        self._pending = defaultdict[int, list[Call]](list)
        super().__init__(num_clients, mask_partners=mask_partners, random_bytes=random_bytes)

    def parties(
        self,
        constructor: Callable[..., Any],
        inputs: Mapping[int, Any],
        clients: Sequence[int],
        /,
        **plan: Any,
    ) -> Parties:
        """The clients of one protocol run; `inputs` are not read."""
        del inputs
        return self._remote(self._roles[constructor], clients, plan)

    def flush(self, name: str) -> list[int]:
        """Send the quiet steps that wait; returns the clients that have answered."""
        asked = list(self._pending)
        self.exchange(name)
        return self.presence.staying(sorted(asked))

    def exchange(self, name: str) -> None:
        """Send every client with something to do its message, and take in what it answers."""
        present = self.presence.staying(sorted(self._pending))
        sent = {
            client: CallMessage(
                self._pending[client], list(map(bytes, self.channel.emptied(client)))
            ).to_bytes()
            for client in present
        }
        self._pending.clear()
        answers = self._carry(name, sent) if sent else {}
        for client in present:
            if client not in answers:
                self.presence.lose(client)
        for client in self.presence.staying(present):
            try:
                with self.presence.losing(client):
                    self.channel.feed(remote_calls.parsed(answers[client]), sender=client)
            except DroppedOut:
                continue

    def later_all(self, clients: Iterable[int]) -> None:
        """Include these clients in the next exchange, even without a step to take."""
        for client in clients:
            self._pending[client].extend(())

    def later(self, client: int, call: Call) -> None:
        """Add a step to the client's next message."""
        self._pending[client].append(call)

    @property
    def is_waiting(self) -> bool:
        """True if steps have not been sent."""
        return bool(self._pending)

    def _connected(self, presence: Presence | None) -> Channel:
        return Channel.of_party(SERVER, presence)

    def _joining(self, clients: Sequence[int]) -> Parties:
        self._pending.clear()
        return self._remote(remote_calls.SETUP, clients, {})

    def _remote(self, role: str, clients: Sequence[int], plan: dict[str, Any]) -> Parties:
        self._number += 1
        return _Remote(self, Call(self._number, role, plan, "", []), clients)


class _Remote:
    """The clients of one protocol run, behind the session's network (`phases.Parties`)."""

    def __init__(self, session: RemoteSession, call: Call, clients: Sequence[int]) -> None:
        self._session, self._call = session, call
        self.clients, self.presence = sorted(clients), session.presence

    def __call__(
        self,
        step: str,
        clients: Iterable[int],
        *,
        arguments: Arguments | None = None,
        tell: Callable[[int], None] | None = None,
        take: Callable[[int], None] | None = None,
        needs_all: bool = False,
        quiet: bool = False,
    ) -> dict[int, Any]:
        """Have the clients take a step; what it returned stays with them."""
        del needs_all  # all were asked at once
        present = self.presence.staying(clients)
        for client in present:
            if tell:
                tell(client)
            self._later(client, step, arguments[client] if arguments else ())
        if quiet:
            return dict.fromkeys(present)
        self._session.exchange(step)
        answered: dict[int, Any] = {}
        for client in self.presence.staying(present):
            try:
                with self.presence.losing(client):
                    if take:
                        take(client)
                answered[client] = None
            except DroppedOut:
                continue
        return answered

    def stream(self, step: str, arguments: Mapping[int, Sequence[Sequence[Any]]]) -> Stream:
        """Begin a phase of many messages, which arrive in one exchange."""
        for client, calls in arguments.items():
            for each in calls:
                self._later(client, step, each)

        def messages(client: int, *arguments: Any) -> Iterator[None]:
            del arguments
            if self._session.is_waiting:
                self._session.exchange(step)
            if client in self.presence.gone:
                raise DroppedOut(client)
            while True:
                yield

        return messages

    def _later(self, client: int, step: str, arguments: Sequence[Any]) -> None:
        self._session.later(client, self._call._replace(step=step, arguments=list(arguments)))
