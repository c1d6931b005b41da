"""Sums over the clients of one round: the protocol, the bytes, and the clients that are in the sum.

    sums = ClientSums("masked", communication)
    total = sums.total(len(own), (U, C), own.__getitem__, are_marks=True)

One value goes from the method to the session. Here all clients are in this process; a network is a subclass
whose `total` exchanges messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from jaxfed.federation.communication import Communication
from jaxfed.training.consensus.dropout import Attendance
from jaxfed.training.consensus.fresh_session import in_fresh_session

ConsensusSums = Literal["plaintext", "masked", "masked_resilient"]

_LEAST = 2  # clients of a masked sum


def fewest_clients(sums: ConsensusSums) -> int:
    """Least number of clients in a sum: 2 under masks, so that it reveals no single client's answers."""
    return 1 if sums == "plaintext" else _LEAST


class ClientSums:
    """Addition of the clients' answers of one round.

    Args:
        protocol: that of the sum.
        communication: all sent bytes are counted here.
        attendance: departures of the clients, under masks, and the outcome; all stay if left out.
        mask_partners: number of others that a client shares double masks with; 0: all.

    Attributes:
        protocol, communication, attendance: the same.
    """

    def __init__(
        self,
        protocol: ConsensusSums,
        communication: Communication,
        attendance: Attendance | None = None,
        mask_partners: int = 0,
    ) -> None:
        self.protocol, self.communication = protocol, communication
        self.attendance, self._mask_partners = attendance, mask_partners

    @property
    def is_plaintext(self) -> bool:
        """True if the server has each client's answers."""
        return self.protocol == "plaintext"

    def num_summed(self, num_clients: int) -> int:
        """Number of clients in the sum, of so many that took part."""
        return num_clients if self.attendance is None else len(self.attendance.summed)

    def total(
        self,
        num_clients: int,
        shape: tuple[int, int],
        own: Callable[[int], np.ndarray],
        *,
        are_marks: bool,
    ) -> np.ndarray | None:
        """The sum of the clients' matrices, under masks, in a fresh session.

        Args:
            num_clients: the number that take part.
            shape: of a matrix, [U, C].
            own: position -> that client's matrix; not called for clients in other processes.
            are_marks: matrices hold indicators 0 and 1, votes or noisy ones. Their sum is exact, int32.
                Other sums are float32.

        Returns:
            The sum, zeros if all clients have left; None, and nothing is sent, with fewer than two.
        """
        from jaxfed.secure.row_sums.server_sums import server_sums
        from jaxfed.secure.session.neighborhoods import enough_partners
        from jaxfed.secure.vote_sums import vote_histogram

        if num_clients < _LEAST:
            if self.attendance is not None:
                self.attendance.note((), ())
            return None
        total = in_fresh_session(
            vote_histogram if are_marks else server_sums,
            [own(client) for client in range(num_clients)],
            self.communication,
            attendance=self.attendance,
            mask_partners=enough_partners(num_clients, self._mask_partners),
            is_resilient=self.protocol == "masked_resilient",
        )
        kind = np.int32 if are_marks else np.float32
        return np.zeros(shape, kind) if total is None else total.astype(kind)
