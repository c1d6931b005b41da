"""1-out-of-2 oblivious transfer of random keys: Naor and Pinkas (SODA 2001), Section 3.1.

In the subgroup of prime order q of edwards25519, with generator G and a point C of unknown logarithm (a hash
of the context):

    receiver, choice c:  k uniform mod q,  PK_c = k G,  PK_{1-c} = C - PK_c      --- PK_0 --->
    sender:              one r uniform mod q for all transfers                    <--- r G ----
    sender's keys:       K_0 = hash(r PK_0),  K_1 = hash(r C - r PK_0)
    receiver's key:      K_c = hash(k r G)

PK_0 is uniform whatever c is, so the sender learns nothing, unconditionally. The receiver would need
r PK_{1-c} = r C - r PK_c, a Diffie-Hellman value of C, so it learns one key only (computational
Diffie-Hellman in the random-oracle model). Parties that follow the protocol are assumed; a message that
no such party could send is refused.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence

from nacl import bindings, exceptions

from jaxfed.errors import ProtocolError

POINT_BYTES = bindings.crypto_core_ed25519_BYTES
KEY_BYTES = 32

RandomBytes = Callable[[int], bytes]


class TransferReceiver:
    """The side that chooses: gets K_c of every transfer. Both sides agree on `context`, never used twice."""

    def __init__(
        self,
        choices: Sequence[int],
        context: bytes,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        common = _common_point(context)
        self._choices, self._context = list(choices), context
        self._exponents = [_scalar(random_bytes) for _ in self._choices]
        self._public = []  # PK_0 of every transfer
        for choice, exponent in zip(self._choices, self._exponents, strict=True):
            own = bindings.crypto_scalarmult_ed25519_base_noclamp(exponent)
            self._public.append(bindings.crypto_core_ed25519_sub(common, own) if choice else own)

    @property
    def request(self) -> bytes:
        """The message to the sender: PK_0 of every transfer, 32 bytes each."""
        return b"".join(self._public)

    def keys(self, response: bytes) -> list[bytes]:
        """K_c of every transfer, 32 bytes, from the sender's message."""
        _check_point(response)
        return [
            _key(
                self._context,
                number,
                choice,
                public + response,
                bindings.crypto_scalarmult_ed25519_noclamp(exponent, response),
            )
            for number, (choice, exponent, public) in enumerate(
                zip(self._choices, self._exponents, self._public, strict=True)
            )
        ]


def transfer_keys(
    request: bytes,
    num_transfers: int,
    context: bytes,
    *,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The sender's side: the message to the receiver (r G, 32 bytes) and (K_0, K_1) of every transfer.

    Cost: one multiplication of a point a transfer, 0.1 ms.
    """
    if len(request) != POINT_BYTES * num_transfers:
        raise ProtocolError(
            f"{num_transfers} transfers need {POINT_BYTES * num_transfers} bytes, "
            f"got {len(request)}"
        )
    r = _scalar(random_bytes)
    response = bindings.crypto_scalarmult_ed25519_base_noclamp(r)
    common = bindings.crypto_scalarmult_ed25519_noclamp(r, _common_point(context))
    keys = []
    for number in range(num_transfers):
        public = request[POINT_BYTES * number : POINT_BYTES * (number + 1)]
        _check_point(public)
        first = bindings.crypto_scalarmult_ed25519_noclamp(r, public)
        second = bindings.crypto_core_ed25519_sub(common, first)
        heard = public + response
        keys.append(
            (_key(context, number, 0, heard, first), _key(context, number, 1, heard, second))
        )
    return response, keys


def _common_point(context: bytes) -> bytes:
    """C: a point of the subgroup with unknown logarithm, the same for both sides."""
    digest = hashlib.sha256(b"jaxfed: Naor-Pinkas point C" + context).digest()
    return bindings.crypto_core_ed25519_from_uniform(digest)


def _scalar(random_bytes: RandomBytes) -> bytes:
    """Uniform modulo q up to 2^-259: 64 bytes reduced."""
    return bindings.crypto_core_ed25519_scalar_reduce(random_bytes(64))


def _check_point(point: bytes) -> None:
    try:
        valid = bindings.crypto_core_ed25519_is_valid_point(point)
    except exceptions.TypeError:  # PyNaCl raises it for a wrong length
        valid = False
    if not valid:
        raise ProtocolError("not a point of the prime-order subgroup of edwards25519")


def _key(context: bytes, number: int, choice: int, heard: bytes, point: bytes) -> bytes:
    digest = hashlib.sha256(b"jaxfed: Naor-Pinkas key")
    digest.update(hashlib.sha256(context).digest() + number.to_bytes(4, "big") + bytes([choice]))
    digest.update(heard + point)
    return digest.digest()
