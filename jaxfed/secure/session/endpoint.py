"""Interface of protocols to a session: sending, receiving, and seeds shared with other parties.

Protocols use nothing else. The session decides how messages travel, how they are framed, encrypted and
counted, and how the seeds are agreed on.
"""

from __future__ import annotations

from typing import Protocol

SERVER = -1  # the server's address; clients are 0, 1, ...


class Endpoint(Protocol):
    """One party's end of a session. Methods raise `DroppedOut` if a client has left."""

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
        """Discard unread messages of this kind from all senders, after their round was aborted."""

    def group_seed(self, label: str) -> bytes:
        """32 bytes that all clients of the session derive for this label, and the server cannot."""

    def pair_seed(self, partner: int, label: str) -> bytes:
        """32 bytes that only this client and `partner` can derive for this label."""

    def claim(self, label: str) -> None:
        """Use up a label that may serve once in a session, because its masks must not be repeated.

        Raises:
            ProtocolError: it was claimed before.
        """
