"""Hamming distances under encryption: those of up to S points to one vector share one ciphertext.

The key's owner holds bits y_i of points i < n_b and encrypts every column packed,

    c_l = Enc(sum_i y_{i,l} (L + 1)^i),     l = 1 ... L.

The distance of point i to another party's vector x is

    h_i = |x| + sum_l y_{i,l} - 2 sum_{l: x_l = 1} y_{i,l},

so with P = prod_{l: x_l = 1} c_l and C = prod_l c_l

    P^2 C^-1 Enc((L - |x|) sum_i (L + 1)^i)   encrypts   V = sum_i (L - h_i) (L + 1)^i,

every digit in [0, L]. The answer adds rho uniform in Z_N to V, which hides it perfectly from the owner, and
multiplies by B^s, without which the owner could compare the answer with products of its own ciphertexts
and read x off. (The paper's sum_l x_l y_l + (1 - x_l)(1 - y_l) counts agreements, L - h; its r in [0, L - 1]
added over the integers hides little; it does not re-randomize.)
"""

from __future__ import annotations

from collections.abc import Sequence

import gmpy2
import numpy as np
from gmpy2 import mpz

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives.fixed_base import FixedBase
from jaxfed.secure.primitives.packing import Packing
from jaxfed.secure.primitives.paillier import PublicKey, check_units, uniform_below
from jaxfed.secure.primitives.prg import SEED_BYTES, Keystream, derived_seed
from jaxfed.secure.primitives.subset_products import product, subset_products


class PackedDistances:
    """Answers for vectors, from the encrypted columns of one block of points.

    Cost: 3 ms a vector and block at L = 4096, 2,048 bits.
    """

    def __init__(
        self, key: PublicKey, ciphertexts: Sequence[mpz], num_points: int, hiding: FixedBase
    ) -> None:
        self._key, self._ciphertexts, self._hiding = key, ciphertexts, hiding
        self._ones = Packing(len(ciphertexts), key.bits).ones(num_points)
        total = product(ciphertexts, key.n_squared)
        check_units(total, key.n)
        self._inverse_total = gmpy2.invert(total, key.n_squared)

    def __call__(self, vectors: np.ndarray, masks: Sequence[mpz], exponents: bytes) -> list[mpz]:
        """One ciphertext of V + rho mod N for every x, uint8 [V, L], with its rho and the bytes of its s."""
        n_squared, num_bits = self._key.n_squared, len(self._ciphertexts)
        products = subset_products(vectors, self._ciphertexts, n_squared)
        zeros = (num_bits - vectors.sum(axis=1, dtype=np.int64)).tolist()
        digits = self._hiding.digits(exponents)
        answers = []
        for chosen, absent, mask, windows in zip(products, zeros, masks, digits, strict=True):
            answer = chosen * chosen % n_squared * self._inverse_total % n_squared
            answer = answer * self._key.plain(absent * self._ones + mask) % n_squared
            answers.append(answer * self._hiding.power(windows) % n_squared)
        return answers


class DistanceMasks:
    """rho of one vector after another, uniform in Z_N, from a seed that the owner does not have.

    The seed is of this run and pair of clients alone. The stream depends on N: the shares of parties with
    different N do not fit together.
    """

    def __init__(self, seed: bytes, n: mpz) -> None:
        if len(seed) != SEED_BYTES:
            raise ProtocolError(f"a seed has {SEED_BYTES} bytes, got {len(seed)}")
        self._stream = Keystream(derived_seed(seed, f"paillier masks/{n:x}"))
        self._n = n

    def take(self, count: int) -> list[mpz]:
        """The next masks."""
        return [uniform_below(self._n, self._bytes) for _ in range(count)]

    def _bytes(self, count: int) -> bytes:
        return self._stream.take(count).tobytes()


def distances(
    opened: Sequence[mpz], masks: Sequence[mpz], n: mpz, packing: Packing, num_points: int
) -> np.ndarray:
    """h from the opened answers T and the masks rho: uint16 [n_b, V]."""
    packed = [(value - mask) % n for value, mask in zip(opened, masks, strict=True)]
    return (packing.num_bits - packing.digits(packed, num_points)).T
