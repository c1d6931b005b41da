"""Signed lists of survivors: a client gives shares only for a list that was shown to the others, too.

The consistency check of Bonawitz et al. (CCS 2017, Figure 4, round 3). A server that shows different lists to
the clients gets shares of b_j from some and of c_j from others, for more clients than any single list allows.
So every client signs the lists of participants and survivors that it received, and gives its shares once it
has t signatures of the same lists. With t > (p + k) / 2 two different lists cannot both have t signatures,
even if k clients sign both.

Signatures are Ed25519 (RFC 8032) under keys made for one round. Clients exchange the public keys over their
sealed links, so the server cannot replace them.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from jaxfed.errors import ProtocolError
from jaxfed.secure.row_sums import masked
from jaxfed.secure.session.key_agreement import RandomBytes

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_PURPOSE = b"jaxfed: survivors of secure row sums"
_ENTRY = struct.Struct(f"<I{SIGNATURE_BYTES}s")
ENTRY_BYTES = _ENTRY.size


class Signer:
    """One client's key pair of one round; cost: 50 us, and the same for each signature."""

    def __init__(self, random_bytes: RandomBytes = secrets.token_bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(random_bytes(KEY_BYTES))
        self.public = self._private.public_key().public_bytes_raw()

    def signature(
        self, number: int, participants: Sequence[int], survivors: Sequence[int]
    ) -> bytes:
        """Signature of the lists of a round's participants and survivors."""
        return self._private.sign(_signed(number, participants, survivors))


def packed_signatures(signatures: Mapping[int, bytes]) -> bytes:
    """Message with signatures and the addresses of their clients."""
    return b"".join(
        _ENTRY.pack(client, signature) for client, signature in sorted(signatures.items())
    )


def check_signatures(
    message: bytes,
    keys: Mapping[int, bytes],
    number: int,
    participants: Sequence[int],
    survivors: Sequence[int],
    threshold: int,
) -> None:
    """Refuse a list of survivors unless at least `threshold` of them have signed it. Cost: 0.1 ms each."""
    if len(message) % ENTRY_BYTES:
        raise ProtocolError(f"signatures take {ENTRY_BYTES} bytes each, got {len(message)}")
    signatures = list(_ENTRY.iter_unpack(message))
    signers = [client for client, _ in signatures]
    if signers != sorted(set(signers)) or not set(signers) <= set(survivors):
        raise ProtocolError(f"signatures of clients {signers}: not survivors in ascending order")
    if len(signers) < threshold:
        raise ProtocolError(f"{len(signers)} signatures of the survivors, {threshold} are needed")
    for client, signature in signatures:
        try:
            Ed25519PublicKey.from_public_bytes(keys[client]).verify(
                signature, _signed(number, participants, survivors)
            )
        except (InvalidSignature, ValueError):
            raise ProtocolError(f"client {client} has not signed these survivors") from None


def _signed(number: int, participants: Sequence[int], survivors: Sequence[int]) -> bytes:
    lists = [masked.start_message(number, clients) for clients in (participants, survivors)]
    return _PURPOSE + len(participants).to_bytes(4, "little") + b"".join(lists)
