"""Keys from key pairs: X25519 (RFC 7748), and HKDF with SHA-256 (RFC 5869) to separate them by purpose.

Every key is HKDF(secret; salt = session, info = fields). The fields are this protocol's name, the purpose and
its context, each with its length in front. Two different lists of fields never have the same encoding, so no
two purposes share a key.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from jaxfed.errors import ProtocolError

KEY_BYTES = 32

RandomBytes = Callable[[int], bytes]

_NAME = b"jaxfed secure session, version 1"
_FIELD = 2**255 - 19


class KeyPair:
    """One party's key pair of one session.

    Args:
        random_bytes: source of the private key; the operating system's unless a test replays it.
    """

    def __init__(self, random_bytes: RandomBytes = secrets.token_bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(random_bytes(KEY_BYTES))
        self.public = self._private.public_key().public_bytes_raw()

    def agreed(self, public: bytes) -> bytes:
        """The secret shared with the owner of a public key: X25519, 32 bytes. Cost: 40 us.

        Raises:
            ProtocolError: not a public key, one that is not in canonical form (RFC 7748 reduces numbers of
                2^255 - 19 or more, which would deceive parties that compare keys), or a point of small
                order, whose secret is public.
        """
        if len(public) != KEY_BYTES:
            raise ProtocolError(f"a public key has {KEY_BYTES} bytes, got {len(public)}")
        if int.from_bytes(public, "little") >= _FIELD:
            raise ProtocolError("a public key that is no element of the field")
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise ProtocolError("a public key of small order") from None


def derived_key(secret: bytes, session: bytes, purpose: str, *context: bytes) -> bytes:
    """The key of 32 bytes for one purpose, from a shared secret. Cost: 3 us."""
    fields = (_NAME, purpose.encode(), *context)
    info = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=info).derive(secret)
