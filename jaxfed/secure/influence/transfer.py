"""S_L^(j) Y_L^(j) in two shares: the server's columns of S times a client's labels, by oblivious transfer.

The server has the columns S_l of client j's m_j labeled points, the client their classes y_l. Neither learns
the product. In Z_2^64, as fixed-point numbers (`fixed_point`), the client gets T and the server R, each
uniform, with

    Z^(j)_ic = sum_l S_il 1[y_l = c] = T_ic - R_ic.

For every label and every class c but the last, a correlated transfer moves the whole column, with the pads of
`transfer_extension` (the scheme of `transferred_sums`, with numbers in place of bits):

    server:  R_ic += H(q_lc)_i,   tau_lci = H(q_lc)_i - H(q_lc xor s)_i + S_il      --- tau --->
    client:  T_ic += H(t_lc)_i + 1[y_l = c] tau_lci

The last class needs no transfer, because all classes together are sum_l S_l, which the server knows:
T_iC = -sum_c T_ic and R_iC = -sum_l S_il - sum_c R_ic. The client's share goes into SecureRowSums like
any contribution, under its masks, and the server subtracts R there. Message by message:

    label_request   server -> client   a context, PK_0 of 128 base transfers       32 + 4096 bytes
    label_response  client -> server   r G                                         32 bytes
  for every block of b <= 256 labels, after `positions` with the server's list of labeled points:
    label_choices   client -> server   u, the masked choices   16 b (C - 1) bytes, in eights
    label_payload   server -> client   tau, points in turn    8 n b (C - 1) bytes, n up to an even number

Parties that follow the protocol learn little: the server which m_j points have labels, the client n. The
client does not even learn its own contribution, only Z[R_j] from the row sums. Columns (`influence_columns`)
would take 4 n b bytes.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import ArrayLike

from jaxfed.errors import ProtocolError
from jaxfed.secure.influence import columns as influence_columns
from jaxfed.secure.primitives import transfer_extension
from jaxfed.secure.primitives.blocks import ranges
from jaxfed.secure.primitives.correlation_hash import CorrelationHash
from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.primitives.oblivious_transfer import TransferReceiver, transfer_keys
from jaxfed.secure.primitives.transfer_extension import (
    ExtensionReceiver,
    ExtensionSender,
    TransferRows,
)
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.parties import Session

PAYLOAD_BYTES = 1 << 22  # approximate size of a message; sets its number of points
_CONTEXT_BYTES = 32
_VALUES_PER_BLOCK = 2  # 64-bit values in a block of AES


class Client:
    """The client, which is the receiver of the transfers.

    Args:
        endpoint: its end of the session.
        labels: Y_L^(j), one-hot rows of its labeled points, [m_j, C].
        num_points: n.
        random_bytes: source of its exponent; the operating system's unless a test replays it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        labels: np.ndarray,
        num_points: int,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._random_bytes = endpoint, random_bytes
        self._choices = np.ascontiguousarray(labels[:, :-1], np.uint8)
        self._num_done = 0
        self._share = np.zeros((num_points, labels.shape[1]), np.uint64)

    def respond(self) -> None:
        """Answer the base transfers."""
        request = self._endpoint.receive(SERVER, "label_request")
        response, pairs = transfer_keys(
            request[_CONTEXT_BYTES:],
            transfer_extension.NUM_BASE,
            request[:_CONTEXT_BYTES],
            random_bytes=self._random_bytes,
        )
        self._extension = ExtensionReceiver(pairs)
        self._endpoint.send(SERVER, "label_response", response)

    def choose(self, num_labels: int) -> None:
        """Send the correction for the next labels."""
        self._block = self._choices[self._num_done : self._num_done + num_labels]
        self._num_done += num_labels
        correction, rows = self._extension.extend(np.packbits(self._block, bitorder="little"))
        self._pads = _Pads(rows, self._block.shape)
        self._endpoint.send(SERVER, "label_choices", correction)

    def accumulate(self, points: range) -> None:
        """Receive the payload for some points.

        Raises:
            ProtocolError: it has another length.
        """
        message = self._endpoint.receive(SERVER, "label_payload")
        pads = self._pads(points)
        if len(message) != pads.nbytes:
            raise ProtocolError(f"the payload has {pads.nbytes} bytes, got {len(message)}")
        tau = np.frombuffer(message, "<u8").reshape(pads.shape)
        pads += tau * self._block[None, :, :, None]
        self._share[points.start : points.stop, :-1] += _over_labels(pads, len(points))

    def finished(self) -> np.ndarray:
        """T, uint64 [n, C]."""
        self._share[:, -1] = 0 - self._share[:, :-1].sum(axis=1, dtype=np.uint64)
        return self._share


class Server:
    """The server's part for one client.

    Args:
        endpoint: its end of the session.
        client: the client's address.
        num_points: n.
        num_classes: C.
        random_bytes: source of its choices; the operating system's unless a test replays it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        client: int,
        num_points: int,
        num_classes: int,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._client = endpoint, client
        self._context = random_bytes(_CONTEXT_BYTES)
        packed = random_bytes(transfer_extension.NUM_BASE // 8)
        self._choices = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").tolist()
        self._base = TransferReceiver(self._choices, self._context, random_bytes=random_bytes)
        self._part = np.zeros((num_points, num_classes), np.uint64)

    def request(self) -> None:
        """Send the request of the base transfers."""
        self._endpoint.send(self._client, "label_request", self._context + self._base.request)

    def finish_setup(self) -> None:
        """Receive the chosen seeds."""
        keys = self._base.keys(self._endpoint.receive(self._client, "label_response"))
        self._extension = ExtensionSender(keys, self._choices)

    def extend(self, columns: np.ndarray) -> None:
        """Receive the correction for the next labels, whose columns of S are uint64 [n, b]."""
        self._columns = columns
        shape = columns.shape[1], self._part.shape[1] - 1
        correction = self._endpoint.receive(self._client, "label_choices")
        rows = self._extension.extend(correction, 8 * -(-shape[0] * shape[1] // 8))
        self._pads = _Pads(rows, shape)
        self._part[:, -1] += columns.sum(axis=1, dtype=np.uint64)

    def transfer(self, points: range) -> None:
        """Send the payload for some points."""
        pads, others = self._pads(points), self._pads(points, self._extension.secret_row)
        np.subtract(pads, others, out=others)
        columns = np.zeros((_VALUES_PER_BLOCK * len(pads), self._columns.shape[1]), np.uint64)
        columns[: len(points)] = self._columns[points.start : points.stop]
        others += columns.reshape(len(pads), _VALUES_PER_BLOCK, -1).swapaxes(1, 2)[:, :, None, :]
        self._endpoint.send(self._client, "label_payload", others.tobytes())
        self._part[points.start : points.stop, :-1] -= _over_labels(pads, len(points))

    def finished(self) -> np.ndarray:
        """-R, uint64 [n, C], to be added to T."""
        self._part[:, -1] -= self._part[:, :-1].sum(axis=1, dtype=np.uint64)
        return self._part


class Transferred:
    """One client's contribution in two shares, by messages of a session (`jaxfed.xclp.steps.contributions`).

    Args:
        session: the parties.
        client: the client's address.
        labels: Y^(j), [n_j, C], zero or one-hot rows.
        num_points: n.
    """

    def __init__(self, session: Session, client: int, labels: np.ndarray, num_points: int) -> None:
        self._session, self._address, self._labels = session, client, labels
        self._num_points = num_points
        ends, positions = session.endpoints, np.flatnonzero(labels.any(axis=1))
        self._client = Client(
            ends[client], labels[positions], num_points, random_bytes=session.source(client)
        )
        self._server = Server(
            ends[SERVER],
            client,
            num_points,
            labels.shape[1],
            random_bytes=session.source(SERVER),
        )
        self._positions, self._row_sums = positions, np.zeros(num_points)

    def positions(self) -> np.ndarray:
        """The labeled points, as the server receives them; runs the base transfers if there are any."""
        received = influence_columns.sent_positions(
            self._session, self._address, self._positions, len(self._labels)
        )
        if len(received):
            self._server.request()
            self._client.respond()
            self._server.finish_setup()
        return received

    def multiply(self, columns: ArrayLike, block: np.ndarray) -> None:
        """Transfer the next columns, those of the points `block`.

        Raises:
            UsageError: contributions that may exceed the fixed-point range.
        """
        needed = np.asarray(columns)[: self._num_points, : len(block)]
        self._row_sums += np.abs(needed).sum(axis=1)
        FixedPoint(len(self._session.clients)).encode(
            self._row_sums
        )  # refuses values that might wrap
        self._client.choose(len(block))
        self._server.extend(FixedPoint(1).encode(needed))
        num_transfers = max(1, len(block) * (self._labels.shape[1] - 1))
        for points in ranges(self._num_points, _points_per_message(num_transfers)):
            self._server.transfer(points)
            self._client.accumulate(points)

    def finished(self) -> tuple[np.ndarray, np.ndarray]:
        """The client's share and the server's, uint64 [n, C] each."""
        return self._client.finished(), self._server.finished()


class _Pads:
    """Pads of one block of labels: those of transfer l (C - 1) + c belong to label l and class c."""

    def __init__(self, rows: TransferRows, shape: tuple[int, int]) -> None:
        self._count, self._shape = shape[0] * shape[1], shape
        self._rows, self._first = rows.values[: self._count], rows.first
        most = _points_per_message(max(1, self._count)) // _VALUES_PER_BLOCK
        self._hash = CorrelationHash(self._count, most)

    def __call__(self, points: range, offset: np.ndarray | None = None) -> np.ndarray:
        """H of the rows (xor `offset`) for some points, uint64 [blocks, b, C - 1, 2].

        Valid until the next call but one.
        """
        rows = self._rows if offset is None else self._rows ^ offset
        num_blocks = -(-len(points) // _VALUES_PER_BLOCK)
        first_block = points.start // _VALUES_PER_BLOCK
        hashed = self._hash(rows, self._first, first_block, num_blocks)
        return hashed.reshape(num_blocks, *self._shape, _VALUES_PER_BLOCK)


def _points_per_message(num_transfers: int) -> int:
    """Number of points in one message; even, which keeps blocks of pads whole."""
    return max(_VALUES_PER_BLOCK, PAYLOAD_BYTES // (8 * num_transfers) & -_VALUES_PER_BLOCK)


def _over_labels(values: np.ndarray, num_points: int) -> np.ndarray:
    """[blocks, b, C - 1, 2] summed over labels: uint64 [points, C - 1]."""
    summed = values.sum(axis=1, dtype=np.uint64)
    return summed.swapaxes(1, 2).reshape(_VALUES_PER_BLOCK * len(values), values.shape[2])[
        :num_points
    ]


def message_bytes(num_labels: int, num_points: int, num_classes: int) -> dict[str, int]:
    """Payload bytes by kind for one client with up to 256 labels, n points in all."""
    if not num_labels:
        return {}
    transfers = num_labels * (num_classes - 1)
    return {
        "label_request": _CONTEXT_BYTES + 32 * transfer_extension.NUM_BASE,
        "label_response": 32,
        "label_choices": transfer_extension.correction_size(8 * -(-transfers // 8)),
        "label_payload": 8 * transfers * (num_points + num_points % 2),
    }
