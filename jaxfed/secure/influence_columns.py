"""XCLP's line 12 through a session: positions of labeled points, and their columns of S, both sealed.

    positions           client -> server   numbers of its labeled points         4 m_j bytes
    influence_columns   server -> client   up to 256 columns of S, float32       4 n bytes a column

The server learns which points have labels, but not the labels. The client learns how far each of its labeled
points reaches every point (docs/threat-model.md).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.phases import Parties


def send_positions(endpoint: Endpoint, positions: np.ndarray) -> None:
    """Send a client's positions."""
    endpoint.send(SERVER, "positions", positions.astype("<u4").tobytes())


def collected_positions(
    parties: Parties, endpoint: Endpoint, sizes: Mapping[int, int]
) -> dict[int, np.ndarray]:
    """Every client's labeled points, int [m_j], as the server receives them; of clients that stay."""
    positions = {}

    def take(client: int) -> None:
        positions[client] = received_positions(endpoint, client, sizes[client])

    answered = parties("send_positions", parties.clients, take=take)
    return {client: positions[client] for client in answered}


def received_positions(endpoint: Endpoint, client: int, num_points: int) -> np.ndarray:
    """Receive a client's positions at the server."""
    message = endpoint.receive(client, "positions")
    if len(message) % 4:
        raise ProtocolError(f"positions have 4 bytes each, got {len(message)} bytes")
    received = np.frombuffer(message, "<u4").astype(np.int64)
    if np.any(np.diff(received) <= 0) or np.any(received >= num_points):
        raise ProtocolError(f"client {client}'s positions are not in order below {num_points}")
    return received


def send_columns(endpoint: Endpoint, client: int, columns: np.ndarray) -> None:
    """Send columns of S, float32 [n, b], to a client."""
    endpoint.send(client, "influence_columns", np.ascontiguousarray(columns, "<f4").tobytes())


def received_columns(endpoint: Endpoint, shape: tuple[int, ...]) -> np.ndarray:
    """Receive columns [n, b] at a client."""
    message = endpoint.receive(SERVER, "influence_columns")
    if len(message) != 4 * shape[0] * shape[1]:
        raise ProtocolError(f"columns {shape} have 4 bytes a value, got {len(message)} bytes")
    received = np.frombuffer(message, "<f4").reshape(shape)
    if not np.isfinite(received).all():
        raise ProtocolError("columns that are not finite")
    return received
