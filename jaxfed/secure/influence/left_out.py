"""Choosing settings by leave-one-out through a session: sealed messages to the clients.

    diagonals    server -> client    S_ii of its labeled points, float32          4 m_j bytes, every matrix
    setting      server -> client    the number of the chosen setting             4 bytes

S_ii is the contribution of a labeled point's own label to its scores (`jaxfed.xclp.selection.leave_one_out`).
It depends on the number of points around it, and their distances. With columns of S the client has it in any
case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import RandomBytes

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


class Client:
    """A client that receives what a choice of settings needs, and its outcome.

    Args:
        endpoint: its end of the session.
        own: unused; it sends nothing.
        random_bytes: unused; nothing is drawn.
    """

    def __init__(
        self, endpoint: Endpoint, own: None = None, *, random_bytes: RandomBytes | None = None
    ) -> None:
        del own, random_bytes
        self._endpoint = endpoint

    def hear_diagonals(self, num_labeled: int) -> np.ndarray:
        """Receive S_ii of the own labeled points."""
        return received_diagonals(self._endpoint, num_labeled)

    def hear_setting(self, num_settings: int) -> int:
        """Receive the number of the chosen setting."""
        return received_setting(self._endpoint, num_settings)


def sent_diagonals(session: Session, own: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """S_ii of each client's labeled points, float32 [m_j], as every client that stays receives them.

    Raises:
        ProtocolError: a message of another length, or with a number that is not finite.
    """

    def send(client: int) -> None:
        message = own[client].astype("<f4").tobytes()
        session.endpoints[SERVER].send(client, "diagonals", message)

    clients = list(own)
    parties = session.parties(Client, dict.fromkeys(clients), clients)
    told = {client: (len(own[client]),) for client in clients}
    return parties("hear_diagonals", clients, told=told, tell=send, quiet=True)


def received_diagonals(endpoint: Endpoint, num_labeled: int) -> np.ndarray:
    """Receive a client's own diagonals.

    Raises:
        ProtocolError: as `sent_diagonals`.
    """
    message = endpoint.receive(SERVER, "diagonals")
    if len(message) != 4 * num_labeled:
        raise ProtocolError(f"{num_labeled} labels have 4 bytes each, got {len(message)} bytes")
    found = np.frombuffer(message, "<f4").astype(np.float32)
    if not np.all(np.isfinite(found)):
        raise ProtocolError("diagonals that are not finite")
    return found


def send_setting(session: Session, chosen: int, num_settings: int) -> None:
    """Send the number of the chosen setting to every client.

    Raises:
        ProtocolError: a number that is not below `num_settings`.
    """

    def send(client: int) -> None:
        session.endpoints[SERVER].send(client, "setting", np.uint32(chosen).tobytes())

    clients = list(session.clients)
    parties = session.parties(Client, dict.fromkeys(clients), clients)
    told = dict.fromkeys(clients, (num_settings,))
    parties("hear_setting", clients, told=told, tell=send, quiet=True)


def received_setting(endpoint: Endpoint, num_settings: int) -> int:
    """Receive the number of the chosen setting at a client.

    Raises:
        ProtocolError: as `send_setting`.
    """
    message = endpoint.receive(SERVER, "setting")
    if len(message) != 4 or int(np.frombuffer(message, "<u4")[0]) >= num_settings:
        raise ProtocolError(f"a setting is a number below {num_settings}, of 4 bytes")
    return int(np.frombuffer(message, "<u4")[0])
