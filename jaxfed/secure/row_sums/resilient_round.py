"""What the parties of a round of `resilient` agree on: threshold, masks' keys, messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from jaxfed.secure.errors import ProtocolError
from jaxfed.secure.primitives.prg import derived_seed
from jaxfed.secure.row_sums import masked
from jaxfed.secure.row_sums.participants import Rows, num_clients
from jaxfed.secure.row_sums.participants import least_participants as least_for_sums
from jaxfed.secure.session.key_agreement import KEY_BYTES, KeyPair


def least_threshold(num_participants: int, *, signed: bool) -> int:
    """The smallest t allowed among p participants.

    More than half, so that no two lists of survivors get an answer from t clients each. More than two
    thirds where lists are signed: then 2 t > p + k, and no two lists have t signatures, although k < p / 3
    clients sign whatever they are given.
    """
    return (2 * num_participants // 3 if signed else num_participants // 2) + 1


def least_participants(rows: Rows, *, signed: bool) -> int:
    """How many of all clients a round must have.

    A round of few gives their sums away, so a server that says of all others that they have left could
    ask for one. Clients that sign take part only if as many are there as had to sign to begin with.
    """
    least = least_threshold(num_clients(rows), signed=True) if signed else 1
    return max(least, least_for_sums(rows))


def start_message(number: int, participants: Sequence[int], threshold: int) -> bytes:
    """A round's number, participants and threshold on the wire."""
    return masked.start_message(number, participants) + struct.pack("<I", threshold)


def parsed_start(message: bytes) -> tuple[int, list[int], int]:
    """Back from `start_message`."""
    if len(message) < 4:
        raise ProtocolError(f"a start has 12 + 4 p bytes, got {len(message)}")
    number, participants = masked.parsed_start(message[:-4])
    return number, participants, struct.unpack("<I", message[-4:])[0]


def parsed_keys(message: bytes, participants: Sequence[int]) -> dict[int, bytes]:
    """Public keys by participant, from the server's list."""
    if len(message) != KEY_BYTES * len(participants):
        raise ProtocolError(
            f"{len(participants)} mask keys have {KEY_BYTES * len(participants)} bytes, "
            f"got {len(message)}"
        )
    return {
        client: message[KEY_BYTES * position : KEY_BYTES * (position + 1)]
        for position, client in enumerate(participants)
    }


def key_pair(secret: bytes) -> KeyPair:
    """(c, c G) on Curve25519."""
    return KeyPair(lambda _: secret)


def agreed_seed(own: KeyPair, public: bytes, number: int) -> bytes:
    """The seed that the owners of two mask keys agree on for a round.

    Raises:
        ProtocolError: the public key is none, or a point of small order.
    """
    return derived_seed(own.agreed(public), f"row sums/{number}/pair mask")
