"""Phases of a protocol: in each one all clients take one turn with the server.

The driver of a protocol is the server's program. It never calls a client itself; it names a step, and
`Parties` has the clients take it:

    uploads = parties("upload", clients, tell=server.invite, take=server.receive)

`InProcess` calls the step of every client's object, one client after another. Messages of one client are
taken before those of the next one are made, so a simulation holds few of them at a time. A network needs one
round trip for the whole phase instead: `tell` for all clients, an exchange of frames, then `take` for all
that answered (`channel.Channel.of_party`). A client there is a function of its random bytes and the frames
that it has received, so all steps of its objects take their randomness from outside (`random_bytes`).

A client that leaves is lost, and so is the sender of a message that the server refuses. The driver goes on
with those that answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from jaxfed.errors import DroppedOut
from jaxfed.secure.session.channel import Presence

Arguments = Mapping[int, Sequence[Any]]  # plain arguments of a step, by client
Stream = Callable[..., Iterator[None]]  # (client, *arguments) -> its messages, one at a time


class Parties(Protocol):
    """The clients of one protocol run, wherever they are.

    Attributes:
        clients: addresses of all that take part, in ascending order.
        presence: the clients that have left, or are lost.
    """

    clients: list[int]
    presence: Presence

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
        """Have the clients take a step.

        Args:
            step: a method of the clients' objects.
            clients: their addresses.
            arguments: of the step: numbers, strings, and lists of them.
            tell: sends the server's messages to one client, before its step.
            take: receives one client's messages at the server, after its step. A `ProtocolError` loses the
                client.
            needs_all: the driver aborts the phase if a client is lost; the others may then stop at once.
            quiet: no client sends anything in this step. A network carries it with the next phase.

        Returns:
            Client -> result of the step, for all that answered; None for a client in another process.
        """
        ...

    def stream(self, step: str, arguments: Mapping[int, Sequence[Sequence[Any]]]) -> Stream:
        """Begin a phase in which clients send many messages, and the server none.

        Args:
            step: a method of the clients' objects, a generator that yields after each message.
            arguments: by client, those of each call, in the order in which the server takes them.

        Returns:
            (client, *arguments) -> iterator. Each `next` has that client send its next message; on a network
            all have arrived by then. Streams begun before the first of them is read share an exchange. `next`
            raises `DroppedOut` if the client has left.
        """
        ...


class InProcess:
    """Clients whose objects are in this process."""

    def __init__(self, clients: Mapping[int, Any], presence: Presence | None = None) -> None:
        self._objects, self.clients = clients, sorted(clients)
        self.presence = presence or Presence()

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
        """Have the clients take a step, one after another."""
        del quiet
        answered = {}
        for client in clients:
            try:
                if tell:
                    tell(client)
                result = getattr(self._objects[client], step)(
                    *(arguments[client] if arguments else ())
                )
                if take:
                    with self.presence.losing(client):
                        take(client)
                answered[client] = result
            except DroppedOut as dropout:
                self.presence.lose(dropout.client)
                if needs_all:
                    break
        return answered

    def stream(self, step: str, arguments: Mapping[int, Sequence[Sequence[Any]]]) -> Stream:
        """Begin a phase of many messages, each made when the server is about to receive it."""
        del arguments

        def messages(client: int, *arguments: Any) -> Iterator[None]:
            sent: Iterator[None] = getattr(self._objects[client], step)(*arguments)
            return sent

        return messages
