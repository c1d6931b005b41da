"""Shamir's secret sharing (CACM 22, 1979) of short byte strings over the prime field of 2^521 - 1.

A secret a_0 becomes shares (x, a_0 + a_1 x + ... + a_{t-1} x^{t-1} mod P), x = 1 ... n, with uniform
a_1 ... a_{t-1}. Any t shares give the secret by Lagrange interpolation at 0; any t - 1 are jointly
uniform and independent of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache

from jaxfed.errors import ProtocolError, UsageError

PRIME = 2**521 - 1
SHARE_BYTES = 66
MAX_SECRET_BYTES = 64


def split(
    secret: bytes,
    num_shares: int,
    threshold: int,
    *,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> list[bytes]:
    """Shares for x = 1 ... `num_shares`, 66 bytes each; `threshold` = t of them give the secret.

    Cost: n t multiplications of 521 bits; 2 ms at n = 100, t = 67.
    """
    if not 1 <= threshold <= num_shares:
        raise UsageError(f"threshold={threshold}: use 1 to {num_shares} shares")
    if len(secret) > MAX_SECRET_BYTES:
        raise UsageError(f"a shared secret has at most {MAX_SECRET_BYTES} bytes, got {len(secret)}")
    coefficients = [_uniform(random_bytes) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "big"))  # a_0, last for Horner's rule
    shares = []
    for x in range(1, num_shares + 1):
        y = 0
        for coefficient in coefficients:
            y = (y * x + coefficient) % PRIME
        shares.append(y.to_bytes(SHARE_BYTES, "big"))
    return shares


def check_share(share: bytes) -> None:
    """Refuse a share that no secret has."""
    if len(share) != SHARE_BYTES:
        raise ProtocolError(f"a share has {SHARE_BYTES} bytes, got {len(share)}")
    if int.from_bytes(share, "big") >= PRIME:
        raise ProtocolError("a share is no element of the field")


def reconstruct(shares: Mapping[int, bytes], threshold: int, secret_bytes: int) -> bytes:
    """The secret of `secret_bytes` bytes from shares {x: share}; the first `threshold` are used.

    Cost: t^2 multiplications for a set of x, 3 ms at t = 67, and t for each further secret.
    """
    if len(shares) < threshold:
        raise ProtocolError(f"{threshold} shares are needed, got {len(shares)}")
    points = {x: int.from_bytes(share, "big") for x, share in list(shares.items())[:threshold]}
    for x, share in shares.items():
        if len(share) != SHARE_BYTES or not 0 < x < PRIME:
            raise ProtocolError(f"share {x} has {len(share)} bytes, not {SHARE_BYTES}")
    if any(y >= PRIME for y in points.values()):
        raise ProtocolError("a share is no element of the field")
    weights = _weights_at_zero(tuple(points))
    secret = sum(y * weight for y, weight in zip(points.values(), weights, strict=True)) % PRIME
    if secret.bit_length() > 8 * secret_bytes:
        raise ProtocolError("the shares do not belong to one secret")
    return secret.to_bytes(secret_bytes, "big")


@lru_cache(maxsize=4)
def _weights_at_zero(xs: tuple[int, ...]) -> list[int]:
    """Lagrange's weights: the value at 0 of the polynomial that is 1 at one x and 0 at the others."""
    weights = []
    for x in xs:
        numerator = denominator = 1
        for other in xs:
            if other != x:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return weights


def _uniform(random_bytes: Callable[[int], bytes]) -> int:
    """A uniform field element: 521 bits, drawn again if they are 2^521 - 1, which is no element."""
    while True:
        value = int.from_bytes(random_bytes(SHARE_BYTES), "big") & PRIME
        if value != PRIME:
            return value
