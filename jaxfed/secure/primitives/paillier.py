"""Paillier's cryptosystem (Eurocrypt 1999) with short exponents; keys are `phe`'s, arithmetic is GMP's.

    Enc(m; e) = (1 + m N) B^e mod N^2,     B = h^N mod N^2,     h = -x^2 mod N,     x uniform,

with 0 <= m < N and e uniform of |N| / 2 bits (after Damgard, Jurik and Nielsen, 2010; p = q = 3
mod 4, so that h has Jacobi symbol 1 and large order). N and B are the public key. Products of ciphertexts
encrypt sums modulo N. An encryption hides m if deciding composite residuosity modulo N^2 is hard, and
powers of h with short exponents are indistinguishable from others.

The key's owner knows its own exponents, and with p and q could take logarithms in small subgroups. A factor
B^s with s uniform of |N| / 2 + 128 bits hides from it how another party combined its ciphertexts: exponents
that differ by less than L 2^(|N| / 2) then have statistical distance below L 2^-128. This needs no hardness
assumption, but two conditions: the owner made its ciphertexts as above, and B has a large order. An owner
recognizes its ciphertexts by their remainder modulo N, and B has few powers modulo p or q if its order there
is small. A B is refused if that order divides lcm(1, ..., 64), as those of 1, -1 and 1 + N do. For B = h^N
this happens with probability below 2^-900.

Decryption is `phe`'s: two powers modulo p^2 and q^2, joined by the Chinese remainder theorem.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import gmpy2
from gmpy2 import mpz
from phe.paillier import PaillierPrivateKey, PaillierPublicKey

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.primitives.products import FixedBase

RandomBytes = Callable[[int], bytes]

KEY_BITS = (2048, 3072)  # 112 and 128 bits of security (NIST SP 800-57)
HIDING_BITS = 128
_MIN_TEST_BITS = 128
_PRIMALITY_ROUNDS = 40
_SMALL_ORDERS = gmpy2.lcm(*range(1, 65))  # a multiple of every order up to 64


class PublicKey:
    """N and B.

    Attributes:
        bits: |N|.
        n, n_squared, base: N, N^2, B.
    """

    def __init__(self, phe_key: PaillierPublicKey, base: mpz) -> None:
        self.phe = phe_key
        self.n, self.base = mpz(phe_key.n), base
        self.n_squared = self.n**2
        self.bits = self.n.bit_length()

    def to_bytes(self) -> bytes:
        """N and B, 3 |N| / 8 bytes."""
        return to_bytes([self.n], self.bits // 8) + to_bytes([self.base], self.bits // 4)

    @classmethod
    def from_bytes(cls, message: bytes, bits: int) -> PublicKey:
        """The key of a message."""
        if len(message) != 3 * bits // 8:
            raise ProtocolError(
                f"a key of {bits} bits takes {3 * bits // 8} bytes, got {len(message)}"
            )
        n = modulus_from_bytes(message[: bits // 8], bits)
        [base] = ciphertexts_from_bytes(message[bits // 8 :], 1, n)
        check_units(base, n)
        if gmpy2.gcd(gmpy2.powmod(base, _SMALL_ORDERS, n) - 1, n) != 1:
            raise ProtocolError("the key's base has a small order: it would hide nothing")
        return cls(PaillierPublicKey(int(n)), base)

    def plain(self, value: mpz) -> mpz:
        """1 + m N mod N^2 for m = `value` mod N: the factor that adds m, and hides nothing."""
        return 1 + value % self.n * self.n

    def hiding_powers(self, num_powers: int) -> FixedBase:
        """B^s for about `num_powers` s of |N| / 2 + 128 bits."""
        return FixedBase(self.base, self.n_squared, self.bits // 2 + HIDING_BITS, num_powers)


class PrivateKey:
    """A public key with p and q."""

    def __init__(self, phe_key: PaillierPrivateKey, public: PublicKey) -> None:
        self.phe, self.public = phe_key, public

    def decrypt(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Their plaintexts in [0, N). Cost: 2.5 ms each at 2,048 bits, 8 ms at 3,072."""
        return [mpz(self.phe.raw_decrypt(int(ciphertext))) for ciphertext in ciphertexts]


class Encryption:
    """The owner's encryption, modulo p^2 and q^2: a fifth faster than modulo N^2.

    Cost: 0.4 ms a ciphertext at 2,048 bits, 1 ms at 3,072, after tables of 67 and 137 MB at most.
    """

    def __init__(self, key: PrivateKey, num_ciphertexts: int) -> None:
        self._public = key.public
        self._p_squared, self._q_squared = mpz(key.phe.psquare), mpz(key.phe.qsquare)
        self._inverse = gmpy2.invert(self._p_squared, self._q_squared)
        self._powers = [
            FixedBase(self._public.base % square, square, self._public.bits // 2, num_ciphertexts)
            for square in (self._p_squared, self._q_squared)
        ]

    @property
    def exponent_bytes(self) -> int:
        """Number of random bytes for one ciphertext."""
        return self._public.bits // 16

    def __call__(self, plaintexts: Sequence[mpz], exponents: bytes) -> list[mpz]:
        """Enc(m; e) for plaintexts m in [0, N) and the bytes of as many exponents, never used before."""
        p_powers, q_powers = self._powers
        ciphertexts = []
        for plaintext, digits in zip(plaintexts, p_powers.digits(exponents), strict=True):
            modulo_p, modulo_q = p_powers.power(digits), q_powers.power(digits)
            lift = (modulo_q - modulo_p) * self._inverse % self._q_squared
            power = modulo_p + self._p_squared * lift
            ciphertexts.append(self._public.plain(plaintext) * power % self._public.n_squared)
        return ciphertexts


def generate_key(
    bits: int = 2048, *, insecure: bool = False, random_bytes: RandomBytes = secrets.token_bytes
) -> PrivateKey:
    """A new key whose N has exactly `bits` bits; `insecure` allows small ones, for tests.

    Cost: 0.1 s at 2,048 bits, 0.3 s at 3,072, on average.
    """
    if insecure and (bits < _MIN_TEST_BITS or bits % 16):
        raise UsageError(f"key_bits={bits}: even tests need multiples of 16 from {_MIN_TEST_BITS}")
    if not insecure and bits not in KEY_BITS:
        raise UsageError(f"key_bits={bits}: use {' and '.join(map(str, KEY_BITS))}")
    while True:
        p, q = (_prime(bits // 2, random_bytes) for _ in range(2))
        if gmpy2.gcd(p - 1, q - 1) == 2:  # no other factor in common; also p != q
            break
    n = p * q
    x = uniform_below(n, random_bytes)
    while gmpy2.gcd(x, n) != 1:
        x = uniform_below(n, random_bytes)
    phe_public = PaillierPublicKey(int(n))
    public = PublicKey(phe_public, gmpy2.powmod(-x * x % n, n, n * n))
    return PrivateKey(PaillierPrivateKey(phe_public, int(p), int(q)), public)


def uniform_below(n: mpz, random_bytes: RandomBytes) -> mpz:
    """A uniform integer in [0, n) from uniform bytes; |n| is a multiple of 8.

    A value that is not below n, with probability below 1/2, is drawn again. The remainder modulo n would not
    be uniform.
    """
    size = n.bit_length() // 8
    while True:
        value = mpz(int.from_bytes(random_bytes(size), "little"))
        if value < n:
            return value


def to_bytes(numbers: Sequence[mpz], size: int) -> bytes:
    """Numbers in `size` little-endian bytes each."""
    return b"".join(int(number).to_bytes(size, "little") for number in numbers)


def modulus_from_bytes(message: bytes, bits: int) -> mpz:
    """N of a message."""
    [n] = _from_bytes(message, 1, bits // 8, "a modulus")
    if n.bit_length() != bits or n % 2 == 0:
        raise ProtocolError(f"a modulus is odd and has {bits} bits, got {n.bit_length()} bits")
    return n


def ciphertexts_from_bytes(message: bytes, count: int, n: mpz) -> list[mpz]:
    """Ciphertexts of a message; `check_units` checks that they are units."""
    ciphertexts = _from_bytes(message, count, n.bit_length() // 4, "ciphertexts")
    if not all(0 < ciphertext < n * n for ciphertext in ciphertexts):
        raise ProtocolError("a ciphertext is not in [1, N^2)")
    return ciphertexts


def plaintexts_from_bytes(message: bytes, count: int, n: mpz) -> list[mpz]:
    """Plaintexts of a message."""
    plaintexts = _from_bytes(message, count, n.bit_length() // 8, "plaintexts")
    if not all(plaintext < n for plaintext in plaintexts):
        raise ProtocolError("a plaintext is not in [0, N)")
    return plaintexts


def check_units(product_of_ciphertexts: mpz, n: mpz) -> None:
    """Refuse ciphertexts that are not units, by their product modulo N or N^2."""
    if gmpy2.gcd(product_of_ciphertexts, n) != 1:
        raise ProtocolError("a ciphertext has no inverse modulo N^2")


def _from_bytes(message: bytes, count: int, size: int, what: str) -> list[mpz]:
    if len(message) != count * size:
        raise ProtocolError(f"{count} {what} take {count * size} bytes, got {len(message)}")
    return [
        mpz(int.from_bytes(message[start : start + size], "little"))
        for start in range(0, len(message), size)
    ]


def _prime(bits: int, random_bytes: RandomBytes) -> mpz:
    """A prime that is 3 mod 4, uniform among those with the two highest bits set."""
    while True:
        drawn = int.from_bytes(random_bytes(bits // 8), "little")
        candidate = mpz(drawn | 3 << (bits - 2) | 3)
        if gmpy2.is_prime(candidate, _PRIMALITY_ROUNDS):
            return candidate
