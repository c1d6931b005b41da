"""Rows of a round's participants, laid end to end: the layout of uploads, and of the server's sums.

Client j owns rows R_j of the n. With p participants, the matrices of a round have the n' rows of these
clients alone, client after client in ascending order; all other rows are left out. An upload is such a matrix
without its sender's own rows.

The server may own rows, too, which come first. All participants upload them, their masks cancel, and the
server reads the sum over all (Bonawitz et al.'s secure aggregation). That requires at least two participants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.session.endpoint import SERVER

ENTRY_BYTES = 8

# Every client's own rows R_j of the n, and the server's if it owns some.
RowsOf = Mapping[int, slice]


def num_clients(rows: RowsOf) -> int:
    """Number of clients among the owners."""
    return len(rows.keys() - {SERVER})


def least_participants(rows: RowsOf) -> int:
    """Smallest number of clients in a round: a sum over one, read by the server, reveals its contribution."""
    return 2 if SERVER in rows else 1


class ParticipatingRows:
    """Places of each participant's rows in a round's matrices."""

    def __init__(self, rows: RowsOf, participants: Iterable[int], num_classes: int) -> None:
        owners = [*({SERVER} & rows.keys()), *sorted(participants)]
        self._sources = {owner: rows[owner] for owner in owners}
        self._places: dict[int, slice] = {}
        end = 0
        for client, source in self._sources.items():
            begin, end = end, end + source.stop - source.start
            self._places[client] = slice(begin, end)
        self.shape = end, num_classes

    @property
    def agreement(self) -> str:
        """Hash of the places and the number of columns, the same at all clients that were told the same."""
        places = [
            (int(owner), int(own.start), int(own.stop)) for owner, own in self._places.items()
        ]
        return hashlib.sha256(repr((places, self.shape[1])).encode()).hexdigest()

    def __getitem__(self, client: int) -> slice:
        """The rows of one participant, or the server's."""
        return self._places[client]

    def gathered(self, values: np.ndarray) -> np.ndarray:
        """The participants' rows of `values` [n, C]: [n', C], a copy."""
        return np.concatenate([values[source] for source in self._sources.values()])

    def upload(self, matrix: np.ndarray, sender: int) -> bytes:
        """Message with the rows of all but the sender: 8 (n' - n_j) C bytes."""
        own = self[sender]
        return matrix[: own.start].tobytes() + matrix[own.stop :].tobytes()

    def add_upload(self, sums: np.ndarray, message: bytes, sender: int) -> None:
        """Add an upload to the sums, uint64 [n', C], in place."""
        own = self[sender]
        num_others = self.shape[0] - (own.stop - own.start)
        others = parsed_rows(message, (num_others, self.shape[1]), f"client {sender}'s upload")
        sums[: own.start] += others[: own.start]
        sums[own.stop :] += others[own.start :]


def parsed_rows(message: bytes, shape: tuple[int, int], what: str) -> np.ndarray:
    """Parse a message of uint64 rows."""
    expected = ENTRY_BYTES * shape[0] * shape[1]
    if len(message) != expected:
        raise ProtocolError(f"{what} has {expected} bytes, got {len(message)}")
    return np.frombuffer(message, "<u8").reshape(shape)
