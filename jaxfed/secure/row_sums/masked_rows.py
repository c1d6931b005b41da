"""Rows of a round's participants, laid end to end, and their masks.

**Layout** of uploads, and of the server's sums. Client j owns rows R_j of the n. With p participants, the
matrices of a round have the n' rows of these clients alone, client after client in ascending order; all other
rows are left out. An upload is such a matrix without its sender's own rows.

The server may own rows, too, which come first. All participants upload them, their masks cancel, and the
server reads the sum over all (Bonawitz et al.'s secure aggregation). That requires at least two participants.

**Masks**, in Z_{2^64}. Client j masks its encoded rows, for every partner k, with the stream G(seed_jk) that
both can expand. The lower of the two adds it, the other one subtracts it. Over all clients the masks cancel,

    M^(j) = sum_{k > j} G(seed_jk) - sum_{k < j} G(seed_jk),     sum_j M^(j) = 0,

and without the seeds any p - 1 of the p masked rows are uniform and independent.

A seed makes one stream, which runs over all rows of a round: p - 1 streams per client, for any number of
owners of the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives.prg import Keystream, buffer_size
from jaxfed.secure.primitives.ring import FixedPoint
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
    """Row ranges of each participant in a round's matrices."""

    def __init__(self, rows: RowsOf, participants: Iterable[int], num_classes: int) -> None:
        owners = [*({SERVER} & rows.keys()), *sorted(participants)]
        self._sources = {owner: rows[owner] for owner in owners}
        self._slices: dict[int, slice] = {}
        end = 0
        for client, source in self._sources.items():
            begin, end = end, end + source.stop - source.start
            self._slices[client] = slice(begin, end)
        self.shape = end, num_classes

    @property
    def agreement(self) -> str:
        """Hash of the row ranges and the number of columns; clients that received the same have the same."""
        intervals = [
            (int(owner), int(rows.start), int(rows.stop)) for owner, rows in self._slices.items()
        ]
        return hashlib.sha256(repr((intervals, self.shape[1])).encode()).hexdigest()

    def __getitem__(self, client: int) -> slice:
        """The rows of one participant, or the server's."""
        return self._slices[client]

    def gathered(self, values: np.ndarray) -> np.ndarray:
        """The participants' rows of `values` [n, C]: [n', C], a copy."""
        return np.concatenate([values[source] for source in self._sources.values()])

    def upload(self, matrix: np.ndarray, sender: int) -> bytes:
        """Message with the rows of all but the sender: 8 (n' - n_j) C bytes."""
        rows = self[sender]
        return matrix[: rows.start].tobytes() + matrix[rows.stop :].tobytes()

    def add_upload(self, sums: np.ndarray, message: bytes, sender: int) -> None:
        """Add an upload to the sums, uint64 [n', C], in place."""
        rows = self[sender]
        num_others = self.shape[0] - (rows.stop - rows.start)
        others = parsed_rows(message, (num_others, self.shape[1]), f"client {sender}'s upload")
        sums[: rows.start] += others[: rows.start]
        sums[rows.stop :] += others[rows.start :]


def parsed_rows(message: bytes, shape: tuple[int, int], what: str) -> np.ndarray:
    """Parse a message of uint64 rows."""
    expected = ENTRY_BYTES * shape[0] * shape[1]
    if len(message) != expected:
        raise ProtocolError(f"{what} has {expected} bytes, got {len(message)}")
    return np.frombuffer(message, "<u8").reshape(shape)


_BLOCK = 1 << 14  # entries masked at a time: 128 KiB, the fastest of 32 to 512 KiB

SignedSeeds = Sequence[
    tuple[bytes, int]
]  # seeds, and +1 or -1 for adding or subtracting their stream


def pair_masks(client: int, seeds: Mapping[int, bytes]) -> SignedSeeds:
    """Masks of a client with the partners {k: seed_jk}."""
    return [(seed, 1 if client < partner else -1) for partner, seed in sorted(seeds.items())]


def masked_rows(values: np.ndarray, encoding: FixedPoint, masks: SignedSeeds) -> np.ndarray:
    """encode(values) + masks: uint64, the shape of `values` (real, [n, C]).

    Cost: 1.4 ns an entry and mask, 6 us a mask, 2 ns an entry to encode; 128 KiB in addition to the result.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    masked = np.empty(flat.size, np.uint64)
    streams, buffer = _streams(masks, 0), _buffer(flat.size)
    for begin in range(0, flat.size, _BLOCK):
        block = masked[begin : begin + _BLOCK]
        encoding.encode(flat[begin : begin + _BLOCK], out=block)
        _add_streams(block, streams, buffer)
    return masked.reshape(values.shape)


def add_masks(elements: np.ndarray, masks: SignedSeeds, *, first: int = 0) -> None:
    """Add the masks to contiguous uint64 ring elements, in place; they begin at entry `first`."""
    flat = elements.reshape(-1)
    streams, buffer = _streams(masks, first), _buffer(flat.size)
    for begin in range(0, flat.size, _BLOCK):
        _add_streams(flat[begin : begin + _BLOCK], streams, buffer)


def removed(masks: SignedSeeds) -> SignedSeeds:
    """The masks that undo these."""
    return [(seed, -sign) for seed, sign in masks]


def _streams(masks: SignedSeeds, first: int) -> list[tuple[Keystream, int]]:
    streams = []
    for seed, sign in masks:
        stream = Keystream(seed, start=16 * (first // 2))  # a block is two entries
        if first % 2:
            stream.words(1)
        streams.append((stream, sign))
    return streams


def _buffer(num_entries: int) -> np.ndarray:
    return np.empty(buffer_size(ENTRY_BYTES * min(num_entries, _BLOCK)), np.uint8)


def _add_streams(
    block: np.ndarray, streams: Sequence[tuple[Keystream, int]], buffer: np.ndarray
) -> None:
    for stream, sign in streams:
        words = stream.take(block.nbytes, buffer=buffer).view("<u8")
        if sign > 0:
            np.add(block, words, out=block)
        else:
            np.subtract(block, words, out=block)
