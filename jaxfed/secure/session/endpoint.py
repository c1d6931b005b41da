"""What a party needs of its surroundings: to send, to receive, and seeds that it shares with others.

Protocols are written against this alone. How messages travel, are framed, encrypted and recorded, and
how the seeds were agreed on, is the session's affair.
"""

from __future__ import annotations

from typing import Protocol

SERVER = -1  # the server's address; clients are 0, 1, ...


class DroppedOut(Exception):
    """A client is gone: whatever it should have sent or received never happens.

    Attributes:
        client: its address.
    """

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} dropped out")
        self.client = client


class Endpoint(Protocol):
    """One party's end of a session. Methods raise `DroppedOut` where a client is gone."""

    @property
    def address(self) -> int:
        """`SERVER`, or the client's number."""

    def send(self, receiver: int, kind: str, payload: bytes) -> None:
        """Send a message that only `receiver` can read."""

    def receive(self, sender: int, kind: str) -> bytes:
        """The next message from `sender`.

        Raises:
            ProtocolError: there is none, it is of another kind, or it is not authentic.
        """

    def discard(self, kind: str) -> None:
        """Forget messages of this kind that wait unread, from whomever: their round was given up."""

    def group_seed(self, label: str) -> bytes:
        """32 bytes that all clients of the session derive for this label, and the server cannot."""

    def pair_seed(self, partner: int, label: str) -> bytes:
        """32 bytes that this client and `partner` derive for this label, and nobody else can."""

    def claim(self, label: str) -> None:
        """Use up a label that must serve once in a session: masks under it must never come again.

        Raises:
            ProtocolError: it was claimed before.
        """
