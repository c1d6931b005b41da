"""The maximum of one number per client: the server reads all of them and sends the largest to every client.

    confidence           client -> server   its number, float32      4 bytes
    largest_confidence   server -> client   the largest of all       4 bytes

A client that leaves before its message is not compared. One that leaves after it gets no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.parties import Session


class Client:
    """One client."""

    def __init__(
        self, endpoint: Endpoint, value: np.float32, *, random_bytes: RandomBytes | None = None
    ) -> None:
        del random_bytes
        self._endpoint, self._value = endpoint, value

    def send(self) -> None:
        """Send the own number."""
        self._endpoint.send(SERVER, "confidence", np.float32(self._value).tobytes())

    def hear(self) -> np.float32:
        """Receive the largest of all."""
        return parsed(self._endpoint.receive(SERVER, "largest_confidence"))


def run(session: Session, values: Mapping[int, np.float32]) -> dict[int, np.float32]:
    """The largest value, float32, at every client that stays; None for one in another process."""
    server = session.endpoints[SERVER]
    received: dict[int, np.float32] = {}

    def take(client: int) -> None:
        received[client] = parsed(server.receive(client, "confidence"))

    def tell(client: int) -> None:
        server.send(client, "largest_confidence", largest.tobytes())

    parties = session.parties(Client, values, list(values))
    compared = parties("send", list(values), take=take)
    largest = max((received[client] for client in compared), default=np.float32(0))
    return parties("hear", compared, tell=tell, quiet=True)


def parsed(message: bytes) -> np.float32:
    """Parse a message to a number in [0, 1]."""
    if len(message) != 4:
        raise ProtocolError(f"a confidence has 4 bytes, got {len(message)}")
    value = np.float32(np.frombuffer(message, "<f4")[0])
    if not 0 <= value <= 1:
        raise ProtocolError("a confidence outside 0 to 1")
    return value
