"""What a client hears of its points' components through a session, sealed.

    leading    server -> client    component and flat part of each of its points    8 n_j bytes

Components are numbered among those with labels, -1 for others, int32; the flat part is a float32
(`jaxfed.xclp.label_matrix`). Both follow from the graph and from which points have labels, and tell the
client which of its own points hang together, and in sum how strongly labels reach them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxfed.secure.errors import ProtocolError
from jaxfed.secure.session.endpoint import SERVER, DroppedOut, Endpoint

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


class Leading(NamedTuple):
    """Of some points: `component` int32 [m], -1 without labels, and `flat` float32 [m]."""

    component: np.ndarray
    flat: np.ndarray


def sent(session: Session, own: dict[int, Leading], num_components: int) -> dict[int, Leading]:
    """What every client that stays takes of its own.

    Raises:
        ProtocolError: a message of another length, or with a component or a number that cannot be.
    """
    server, heard = session.endpoints[SERVER], {}
    for client in list(session.clients):
        if client not in own:
            continue
        component, flat = own[client]
        try:
            server.send(
                client, "leading", component.astype("<i4").tobytes() + flat.astype("<f4").tobytes()
            )
            heard[client] = received(session.endpoints[client], len(flat), num_components)
        except DroppedOut:
            continue
    return heard


def received(endpoint: Endpoint, num_points: int, num_components: int) -> Leading:
    """A client takes its own.

    Raises:
        ProtocolError: as `sent`.
    """
    message = endpoint.receive(SERVER, "leading")
    if len(message) != 8 * num_points:
        raise ProtocolError(f"{num_points} points have 8 bytes each, got {len(message)} bytes")
    component = np.frombuffer(message[: 4 * num_points], "<i4").astype(np.int32)
    flat = np.frombuffer(message[4 * num_points :], "<f4").astype(np.float32)
    if np.any((component < -1) | (component >= num_components)):
        raise ProtocolError(f"components outside -1 to {num_components - 1}")
    if not np.all(np.isfinite(flat) & (flat >= 0)):
        raise ProtocolError("flat parts that are below zero or not finite")
    return Leading(component, flat)
