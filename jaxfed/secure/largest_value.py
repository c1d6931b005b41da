"""The maximum of one number per client: the server reads all of them and sends the largest to every client.

    confidence           client -> server   its number, float32      4 bytes
    largest_confidence   server -> client   the largest of all       4 bytes

A client that leaves before its message is not compared. One that leaves after it gets no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.federation.departures import DroppedOut
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session


def run(session: Session, values: Mapping[int, np.float32]) -> dict[int, np.float32]:
    """The largest value, float32, at every client that stays.

    Args:
        session: the parties.
        values: one in [0, 1] of every client.

    Raises:
        ProtocolError: a message that is not a float32 in [0, 1].
    """
    server = session.endpoints[SERVER]
    received: dict[int, np.float32] = {}
    for client, value in values.items():
        try:
            session.endpoints[client].send(SERVER, "confidence", np.float32(value).tobytes())
            received[client] = parsed(server.receive(client, "confidence"))
        except DroppedOut:
            continue
    largest = max(received.values(), default=np.float32(0))
    heard = {}
    for client in received:
        try:
            server.send(client, "largest_confidence", largest.tobytes())
            heard[client] = parsed(session.endpoints[client].receive(SERVER, "largest_confidence"))
        except DroppedOut:
            continue
    return heard


def parsed(message: bytes) -> np.float32:
    """Parse a message to a number in [0, 1].

    Raises:
        ProtocolError: an invalid message.
    """
    if len(message) != 4:
        raise ProtocolError(f"a confidence has 4 bytes, got {len(message)}")
    value = np.float32(np.frombuffer(message, "<f4")[0])
    if not 0 <= value <= 1:
        raise ProtocolError("a confidence outside 0 to 1")
    return value
