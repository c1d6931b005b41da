"""SecureHamming by homomorphic encryption as the paper prints it, corrected: `phe_paper`.

XCLP, Section 3.2, for a point y of client j (`first`, whose key it is) and every point x of client k
(`second`), one bit a ciphertext, in Z_N:

    1) j encrypts y_1 ... y_L and sends them to k;
    2) k draws r uniform in Z_N and computes, encrypted, T = r + sum_{l: x_l = 0} y_l - sum_{l: x_l = 1} y_l;
    3) k sends Enc(T) to j, and R = r - sum_l x_l mod N to the server;
    4) j decrypts and sends T to the server;
    5) T - R mod N = sum_{l: x_l = 1} (1 - y_l) + sum_{l: x_l = 0} y_l = h(x, y).

Corrections: the printed sign and constant give L - h; r in [0, L - 1], added over the integers, hides
little, and modulo L distance L would be 0; a response must be re-randomized, since j could compare it
with products of its own ciphertexts (here Enc(r) is fresh); R goes to the server alone, and it is k's.

Every bit costs a full encryption and every pair L operations of `phe`, so this is for reading and for
small cases: 36 s a point and 0.1 s a pair at L = 4096 and 2,048 bits. `paillier_packed` is the same idea,
packed.

    modulus     j -> k, both -> server    N                 |N| / 8 bytes each
    point       j -> k                    Enc(y), a point   |N| L / 4 bytes
    answer      k -> j                    Enc(T), a pair    |N| / 4 bytes
    opened      j -> server               T, a pair         |N| / 8 bytes
    mask        k -> server               R, a pair         |N| / 8 bytes
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import numpy as np
from gmpy2 import mpz
from phe.paillier import EncryptedNumber, PaillierPublicKey

from jaxfed.secure.errors import ProtocolError
from jaxfed.secure.hamming.pair import PairServer, pair_kind, until_dropout
from jaxfed.secure.primitives.blocks import Block, bits_of, checked_distances
from jaxfed.secure.primitives.paillier import (
    PrivateKey,
    check_units,
    ciphertexts_from_bytes,
    modulus_from_bytes,
    plaintexts_from_bytes,
    to_bytes,
)
from jaxfed.secure.primitives.subset_products import product
from jaxfed.secure.session.endpoint import SERVER, Endpoint


class First:
    """Client j, with its points, uint32 [n_j, L / 32], and its key."""

    def __init__(self, endpoint: Endpoint, second: int, codes: np.ndarray, key: PrivateKey) -> None:
        self._endpoint, self._second, self._bits = endpoint, second, bits_of(codes)
        self._key, self._public, self._key_bits = key.phe, key.phe.public_key, key.public.bits
        self._pair = endpoint.address, second

    def send_key(self) -> None:
        """Send N to the other client and to the server."""
        n = to_bytes([mpz(self._public.n)], self._key_bits // 8)
        self._endpoint.send(self._second, "modulus", n)
        self._endpoint.send(SERVER, pair_kind("modulus", *self._pair), n)

    def send_point(self, row: int) -> None:
        """Step 1."""
        encrypted = [self._public.raw_encrypt(y) for y in self._bits[row].tolist()]
        self._endpoint.send(self._second, "point", to_bytes(encrypted, self._key_bits // 4))

    def open(self) -> None:
        """Step 4."""
        message = self._endpoint.receive(self._second, "answer")
        [answer] = ciphertexts_from_bytes(message, 1, mpz(self._public.n))
        check_units(answer, mpz(self._public.n))
        opened = self._key.raw_decrypt(int(answer))
        self._endpoint.send(
            SERVER, pair_kind("opened", *self._pair), to_bytes([opened], self._key_bits // 8)
        )


class Second:
    """Client k, with its points, uint32 [n_k, L / 32].

    Args:
        endpoint: its end of the session.
        first: client j's address.
        codes: its points.
        key_bits: |N| that was agreed on.
        random_below: uniform in [0, n); the operating system's unless a test replays it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        first: int,
        codes: np.ndarray,
        *,
        key_bits: int = 2048,
        random_below: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._endpoint, self._first, self._bits = endpoint, first, bits_of(codes)
        self._key_bits, self._random_below = key_bits, random_below
        self._pair = first, endpoint.address

    def receive_key(self) -> None:
        """Take N and tell the server which."""
        message = self._endpoint.receive(self._first, "modulus")
        self._key = PaillierPublicKey(int(modulus_from_bytes(message, self._key_bits)))
        self._endpoint.send(SERVER, pair_kind("modulus", *self._pair), message)

    def receive_point(self) -> None:
        """Take one point of client j, encrypted."""
        message, n = self._endpoint.receive(self._first, "point"), mpz(self._key.n)
        ciphertexts = ciphertexts_from_bytes(message, self._bits.shape[1], n)
        check_units(product(ciphertexts, n), n)
        self._y = [EncryptedNumber(self._key, int(ciphertext)) for ciphertext in ciphertexts]

    def answer(self, column: int) -> None:
        """Steps 2 and 3 for one point of the own ones."""
        x, r = self._bits[column].tolist(), self._random_below(self._key.n)
        total = EncryptedNumber(self._key, self._key.raw_encrypt(r))
        for bit, y in zip(x, self._y, strict=True):
            total = total - y if bit else total + y
        answer = total.ciphertext(be_secure=False)  # Enc(r) has randomized it
        self._endpoint.send(self._first, "answer", to_bytes([answer], self._key_bits // 4))
        mask = (r - sum(x)) % self._key.n
        self._endpoint.send(
            SERVER, pair_kind("mask", *self._pair), to_bytes([mask], self._key_bits // 8)
        )


class Server(PairServer):
    """Step 5 for one pair of clients; L bits, |N| agreed on."""

    KINDS = ("modulus", "opened", "mask")

    def __init__(
        self, endpoint: Endpoint, first: int, second: int, num_bits: int, *, key_bits: int = 2048
    ) -> None:
        super().__init__(endpoint, first, second, num_bits)
        self._key_bits = key_bits

    def receive_key(self) -> None:
        """Take N from both.

        Raises:
            ProtocolError: it is no modulus, or not the same.
        """
        self._n, other = (
            modulus_from_bytes(self._receive(client, "modulus"), self._key_bits)
            for client in (self._first, self._second)
        )
        if self._n != other:
            raise ProtocolError(f"clients {self._first} and {self._second} name different moduli")

    def combine(self, row: int, column: int) -> Block:
        """h of one pair of points."""
        [t] = plaintexts_from_bytes(self._receive(self._first, "opened"), 1, self._n)
        [r] = plaintexts_from_bytes(self._receive(self._second, "mask"), 1, self._n)
        h = np.array([[(t - r) % self._n]], object)
        distances = checked_distances(h, self._num_bits).astype(np.uint16)
        rows, columns = range(row, row + 1), range(column, column + 1)
        return Block(self._first, self._second, rows, columns, distances)


@until_dropout
def run_pair(
    first: First, second: Second, server: Server, sizes: tuple[int, int]
) -> Iterator[Block]:
    """All pairs of points of two clients with n_j and n_k points; yields one distance at a time."""
    first.send_key()
    second.receive_key()
    server.receive_key()
    for row in range(sizes[0]):
        first.send_point(row)
        second.receive_point()
        for column in range(sizes[1]):
            second.answer(column)
            first.open()
            yield server.combine(row, column)


def message_bytes(
    num_points: int, num_vectors: int, num_bits: int, key_bits: int = 2048
) -> dict[str, int]:
    """Payload bytes by kind of one run of `run_pair`."""
    pairs = num_points * num_vectors
    if not pairs:
        return {}
    return {
        "modulus": 3 * key_bits // 8,
        "point": num_points * num_bits * key_bits // 4,
        "answer": pairs * key_bits // 4,
        "opened": pairs * key_bits // 8,
        "mask": pairs * key_bits // 8,
    }
