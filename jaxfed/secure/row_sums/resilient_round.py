"""Shared definitions of the parties of a `resilient` round: threshold, keys of masks, messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives.prg import derived_seed
from jaxfed.secure.row_sums import masked
from jaxfed.secure.row_sums.participants import RowsOf, num_clients
from jaxfed.secure.row_sums.participants import least_participants as least_for_sums
from jaxfed.secure.session.key_agreement import KEY_BYTES, KeyPair


def least_threshold(num_participants: int, *, signed: bool) -> int:
    """The smallest t allowed among p participants.

    It is more than half: then two lists of survivors cannot both get answers from t clients. It is more than
    two thirds if lists are signed: then 2 t > p + k, and two lists cannot both have t signatures, even if k <
    p / 3 clients sign any list.
    """
    return (2 * num_participants // 3 if signed else num_participants // 2) + 1


def least_participants(rows: RowsOf, *, signed: bool) -> int:
    """Smallest number of clients in a round.

    A round of few clients reveals their sums, and a server could ask for one by claiming that all others have
    left. So clients that sign take part only if as many clients as must sign at first are in the round.
    """
    least = least_threshold(num_clients(rows), signed=True) if signed else 1
    return max(least, least_for_sums(rows))


def start_message(number: int, participants: Sequence[int], threshold: int) -> bytes:
    """Message with a round's number, participants and threshold."""
    return masked.start_message(number, participants) + struct.pack("<I", threshold)


def parsed_start(message: bytes) -> tuple[int, list[int], int]:
    """Parse the message of `start_message`."""
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
        ProtocolError: the public key is invalid, or a point of small order.
    """
    return derived_seed(own.agreed(public), f"row sums/{number}/pair mask")


def owner_label(number: int, contributor: int, owner: int) -> str:
    """Label of the seed of the mask on `contributor`'s part of `owner`'s rows in a round."""
    return f"row sums/{number}/rows of {owner} by {contributor}"
