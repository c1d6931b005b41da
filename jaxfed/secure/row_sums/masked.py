"""SecureRowSums (XCLP, Section 3.2): sums of the clients' matrices, from which each client gets its own rows.

Client j has Z^(j) [n, C] over all clients' points, and R_j are the rows of its own points. Client j learns
Z[R_j], Z = sum_j Z^(j), and the server learns nothing. Per round, with p participants:

    start    server -> each    the round's number and participants            8 + 4 p bytes
    upload   each -> server    Z^(j) + M^(j) on the others' rows              8 (n' - n_j) C bytes
    sums     server -> each    hat Z[R_j], the uploads summed there           8 n_j C bytes

and client j adds Z^(j)[R_j] + M^(j)[R_j], which it never sent. Numbers are fixed point in Z_{2^64}
(`ring` states range and error), masks come from pairwise seeds (`masked_rows`) of this round.
The server sees p - 1 masked matrices on each client's rows: uniform and independent. A client learns
the sum, and so with p = 2 the other's contribution; any protocol for this task reveals that.

Cost: a client expands p - 1 streams, one a partner, over all n' rows at once: in all p (p - 1) seeds and
streams, 20 us each, and p (p - 1) n' C entries at 1.4 ns. With 500 clients these are 250,000 streams, 5 s
(`launch.bench --kernel=row_sums` measures a round of 500, by double masks, too).

Departures from the printed protocol, all needed:
  * Rows R_j are left out of client j's upload instead of sent as zeros.
  * Rows of clients that do not take part are left out by all. On these rows the masks of the participants
    would cancel without the owner's, and the server would read the sums.
  * Masks depend on whose rows are where. A server that sent clients different layouts could otherwise have
    all of them upload one row, where their masks would cancel.
  * Masks belong to one round. After a dropout inside, the round is aborted and another one starts
    without the client. The same masks twice would show the server differences, and a client that got
    the sums of both rounds would learn the dropped client's contribution from them.

Dropouts (Section 3.3): if a client leaves before or inside a round, its labels do not count, as if it
had none. If it leaves after a round, it gets no sums, and the others are not affected. `double_masks` need no
second upload.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums.masked_rows import (
    ParticipatingRows,
    RowsOf,
    least_participants,
    masked_rows,
    pair_masks,
    parsed_rows,
)
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.phases import Parties

UploadsDone = Callable[[int, int], None]  # (uploads received, of how many)
RowSums = dict[int, np.ndarray]  # Z[R_j], float64 [n_j, C], of every client that got it


class Client:
    """One client, with Z^(j), real [n, C], and R_k of every client."""

    def __init__(self, endpoint: Endpoint, values: np.ndarray, rows: RowsOf) -> None:
        self._endpoint, self._values, self._rows = endpoint, values, rows
        self._own = endpoint.address

    def upload(self) -> None:
        """Receive the round's start and send the masked rows of the other participants."""
        number, participants = parsed_start(self._endpoint.receive(SERVER, "start"))
        if self._own not in participants or not set(participants) <= self._rows.keys():
            raise ProtocolError(f"row sums among clients {participants}: not what was agreed")
        if len(participants) < least_participants(self._rows):
            raise ProtocolError(f"row sums among clients {participants}: too few for a sum")
        self._endpoint.claim(f"row sums/{number}")
        self._encoding = FixedPoint(len(participants))
        rows = ParticipatingRows(self._rows, participants, self._values.shape[1])
        label = f"row sums/{number}/{rows.agreement}"
        seeds = {
            partner: self._endpoint.pair_seed(partner, label)
            for partner in participants
            if partner != self._own
        }
        masks = pair_masks(self._own, seeds)
        masked = masked_rows(rows.gathered(self._values), self._encoding, masks)
        self._masked_own = masked[rows[self._own]].copy()
        self._number = number
        self._endpoint.send(SERVER, f"upload/{number}", rows.upload(masked, self._own))

    def finish(self) -> np.ndarray:
        """Z[R_j], float64 [n_j, C], from the server's sums."""
        message = self._endpoint.receive(SERVER, f"sums/{self._number}")
        sums = parsed_rows(message, self._masked_own.shape, "a message of sums")
        return self._encoding.decode(self._masked_own + sums)


class Server:
    """The server.

    Attributes:
        least_participants: smallest number of clients in a round.
    """

    def __init__(self, endpoint: Endpoint, rows: RowsOf, num_classes: int) -> None:
        self._endpoint, self._rows, self._num_classes = endpoint, rows, num_classes
        self.least_participants = least_participants(rows)

    def start(self, number: int, participants: Sequence[int]) -> None:
        """Begin a round with sums of 0; messages of earlier ones are discarded."""
        self._number, self._participants = number, sorted(participants)
        self._layout = ParticipatingRows(self._rows, self._participants, self._num_classes)
        self._sums = np.zeros(self._layout.shape, np.uint64)

    def invite(self, client: int) -> None:
        """Send the round's start to one client."""
        self._endpoint.send(client, "start", start_message(self._number, self._participants))

    def receive_upload(self, client: int) -> None:
        """Add one client's upload to the sums of the others' rows."""
        message = self._endpoint.receive(client, f"upload/{self._number}")
        self._layout.add_upload(self._sums, message, client)

    def send_sums(self, client: int) -> None:
        """Send one client the sums of its rows."""
        sums = self._sums[self._layout[client]]
        self._endpoint.send(client, f"sums/{self._number}", sums.tobytes())

    def own_sums(self) -> np.ndarray:
        """The sums of the server's own rows, uint64 [n_s, C]; once all uploads are there, without masks."""
        return self._sums[self._layout[SERVER]]

    @property
    def summed(self) -> list[int]:
        """The clients whose contributions are summed, once all uploads of the round have arrived."""
        return list(self._participants)


def run(
    parties: Parties,
    server: Server,
    members: Iterable[int] | None = None,
    *,
    first_round: int = 0,
    progress: UploadsDone | None = None,
) -> RowSums:
    """Sums for all clients that stay, after as many rounds as dropouts require.

    Returns:
        Z[R_j] of every client that stayed to the end, float64 [n_j, C]; None for one in another process.
    """
    participants = sorted(parties.clients if members is None else members)
    number = first_round
    while len(participants) >= server.least_participants:
        server.start(number, participants)
        uploads = parties(
            "upload",
            participants,
            tell=server.invite,
            take=counting(server.receive_upload, len(participants), progress),
            needs_all=True,
        )
        if len(uploads) == len(participants):
            return parties("finish", participants, tell=server.send_sums, quiet=True)
        participants = parties.presence.staying(participants)
        number += 1
    return {}


def counting(
    receive: Callable[[int], None], total: int, progress: UploadsDone | None
) -> Callable[[int], None]:
    """`receive`, after which progress is reported."""
    done = itertools.count(1)

    def received(client: int) -> None:
        receive(client)
        if progress:
            progress(next(done), total)

    return received


def start_message(number: int, participants: Sequence[int]) -> bytes:
    """Message with a round's number and participants."""
    return struct.pack(f"<Q{len(participants)}I", number, *participants)


def parsed_start(message: bytes) -> tuple[int, list[int]]:
    """Parse the message of `start_message`."""
    count, rest = divmod(len(message) - 8, 4)
    if count < 1 or rest:
        raise ProtocolError(f"a start has 8 + 4 p bytes, got {len(message)}")
    number, *participants = struct.unpack(f"<Q{count}I", message)
    if participants != sorted(set(participants)):
        raise ProtocolError(f"participants {participants}: not in ascending order")
    return number, participants
