"""Key agreement by X25519 (RFC 7748), and a key for each purpose by HKDF with SHA-256 (RFC 5869).

Every key is HKDF(secret; salt = session, info = fields). The fields are this protocol's name, the purpose and
its context, each with its length in front. Two different lists of fields never have the same encoding, so no
two purposes share a key.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from jaxfed.errors import ProtocolError

KEY_BYTES = 32

RandomBytes = Callable[[int], bytes]

_NAME = b"jaxfed secure session, version 1"
_FIELD = 2**255 - 19
_SMALL_ORDER = {  # u-coordinates of points of an order that divides 8
    *(0, 1, _FIELD - 1),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
}


class KeyPair:
    """One party's key pair of one session."""

    def __init__(self, random_bytes: RandomBytes = secrets.token_bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(random_bytes(KEY_BYTES))
        self.public = self._private.public_key().public_bytes_raw()

    def agreed(self, public: bytes) -> bytes:
        """The secret shared with the owner of a public key: X25519, 32 bytes. Cost: 40 us."""
        check_public(public)
        return self._private.exchange(X25519PublicKey.from_public_bytes(public))


class Agreements(Mapping[int, bytes]):
    """Secrets shared with the owners of public keys, each computed when it is first read.

    A client has all public keys of its session, and in some protocols exchanges nothing with most owners.
    """

    def __init__(self, keys: KeyPair, publics: Mapping[int, bytes]) -> None:
        for public in publics.values():
            check_public(public)
        self._keys, self._publics = keys, publics
        self._agreed: dict[int, bytes] = {}

    def __getitem__(self, partner: int) -> bytes:
        if partner not in self._agreed:
            self._agreed[partner] = self._keys.agreed(self._publics[partner])
        return self._agreed[partner]

    def __iter__(self) -> Iterator[int]:
        return iter(self._publics)

    def __len__(self) -> int:
        return len(self._publics)

    def __contains__(self, partner: object) -> bool:
        return partner in self._publics


def check_public(public: bytes) -> None:
    """Refuse a public key that gives no shared secret.

    RFC 7748 reduces numbers of 2^255 - 19 or more, so different keys could be the same point. That would
    deceive parties that compare keys. With a point of small order the secret is public.
    """
    if len(public) != KEY_BYTES:
        raise ProtocolError(f"a public key has {KEY_BYTES} bytes, got {len(public)}")
    number = int.from_bytes(public, "little")
    if number >= _FIELD:
        raise ProtocolError("a public key that is no element of the field")
    if number in _SMALL_ORDER:
        raise ProtocolError("a public key of small order")


def derived_key(secret: bytes, session: bytes, purpose: str, *context: bytes) -> bytes:
    """The key of 32 bytes for one purpose, from a shared secret. Cost: 3 us."""
    fields = (_NAME, purpose.encode(), *context)
    info = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=info).derive(secret)
