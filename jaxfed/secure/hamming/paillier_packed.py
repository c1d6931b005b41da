"""SecureHamming by Paillier's encryption (XCLP, Section 3.2), packed: `phe`.

The paper's steps for a point y of client j, which has the key, and a point x of client k, in Z_N:

    1) j encrypts y_1 ... y_L and sends them to k;
    2) k draws r uniform in Z_N and computes, encrypted, T = r + sum_{l: x_l = 0} y_l - sum_{l: x_l = 1} y_l;
    3) k sends Enc(T) to j, and R = r - sum_l x_l mod N to the server;
    4) j decrypts T and sends it to the server;
    5) the server computes T - R mod N = sum_{l: x_l = 0} y_l + sum_{l: x_l = 1} (1 - y_l) = h(x, y).

These steps correct the printed text in four points:

  * The printed signs and constant give L - h, the number of equal bits.
  * The printed r lies in [0, L - 1]. Added over the integers, it hides little of the sum. Modulo L, the
    distances 0 and L would be the same. A uniform r in Z_N hides the sum perfectly.
  * Enc(T) needs randomness of its own. Otherwise j recognizes it as a product of its ciphertexts.
  * Client k computes R, and only the server receives it. With R, client j would have the distance.

This module takes these steps for packed points. Client `first` is j with points y_i, `second` is k with
points x_m. A block has S points of `first`, as many as fit a plaintext (`packing`). The key has |N| bits:

    key         first -> second    N and B                          3 |N| / 8 bytes
    modulus     first -> server    N                                |N| / 8 bytes
    mask_seed   second -> server   the seed of all rho              32 bytes
  for every block of first's points:
    points      first -> second    their L columns, encrypted       |N| L / 4 bytes
   for up to 540 of second's vectors at a time, V of them:
    answers     second -> first    Enc(V_m + rho_m), re-randomized  V |N| / 4 bytes
    opened      first -> server    T_m = V_m + rho_m mod N          V |N| / 8 bytes

The server computes V_m = T_m - rho_m mod N, whose digits are L - h. The paper sends L ciphertexts a point
and one answer a pair of points; here both serve up to S points at once.

Parties that follow the protocol and do not collude learn only the number of each other's points: second sees
encryptions, first sees T, uniform in Z_N whatever V is, in a ciphertext with randomness of its own, and the
server learns h.

The algebra. The key's owner holds bits y_i of points i < n_b and encrypts every column packed,

    c_l = Enc(sum_i y_{i,l} (L + 1)^i),     l = 1 ... L.

The distance of point i to another party's vector x is

    h_i = |x| + sum_l y_{i,l} - 2 sum_{l: x_l = 1} y_{i,l},

so with P = prod_{l: x_l = 1} c_l and C = prod_l c_l

    P^2 C^-1 Enc((L - |x|) sum_i (L + 1)^i)   encrypts   V = sum_i (L - h_i) (L + 1)^i,

every digit in [0, L]. The answer adds rho, uniform in Z_N, to V, which hides V perfectly from the owner. It
also multiplies by B^s. Otherwise the owner could compare the answer with products of its own ciphertexts,
and so read x.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence

import gmpy2
import numpy as np
from gmpy2 import mpz

from jaxfed.errors import ProtocolError
from jaxfed.secure.hamming.pair import Block, PairServer, bits_of, pair_kind, ranges
from jaxfed.secure.primitives.packing import Packing, balanced
from jaxfed.secure.primitives.paillier import (
    HIDING_BITS,
    Encryption,
    PrivateKey,
    PublicKey,
    check_units,
    ciphertexts_from_bytes,
    modulus_from_bytes,
    plaintexts_from_bytes,
    to_bytes,
    uniform_below,
)
from jaxfed.secure.primitives.prg import SEED_BYTES, Keystream, derived_seed
from jaxfed.secure.primitives.products import FixedBase, product, subset_products
from jaxfed.secure.session.endpoint import SERVER, Endpoint

RandomBytes = Callable[[int], bytes]

MESSAGE_VECTORS = 540  # answers in one message


class EncryptedPoints:
    """A client's points under its own key: encrypted once, block by block, for all its partners.

    Attributes:
        key: the client's.
        blocks: the points that share a plaintext, for each block.

    Memory: |N| L / 4 bytes for each requested block, 12 kB a point at L = 4096 and 2,048 bits.
    """

    def __init__(
        self, codes: np.ndarray, key: PrivateKey, *, random_bytes: RandomBytes = secrets.token_bytes
    ) -> None:
        self.key, self._codes = key, codes
        self._num_bits = 32 * codes.shape[1]
        self._packing = Packing(self._num_bits, key.public.bits)
        self.blocks = list(balanced(len(codes), self._packing.slots))
        self._encryption = Encryption(key, self._num_bits * len(self.blocks))
        self._random_bytes = random_bytes
        self._messages: dict[int, bytes] = {}

    def message(self, block: int) -> bytes:
        """The encrypted columns of one block."""
        if block not in self._messages:
            points = self.blocks[block]
            columns = self._packing.packed_columns(bits_of(self._codes[points.start : points.stop]))
            exponents = self._random_bytes(len(columns) * self._encryption.exponent_bytes)
            ciphertexts = self._encryption(columns, exponents)
            self._messages[block] = to_bytes(ciphertexts, self.key.public.bits // 4)
        return self._messages[block]


class First:
    """The client that owns the key."""

    def __init__(self, endpoint: Endpoint, second: int, points: EncryptedPoints) -> None:
        self._endpoint, self._second, self._points = endpoint, second, points
        self._pair = endpoint.address, second

    def send_key(self) -> None:
        """Send N and B to the other client, N to the server."""
        public = self._points.key.public
        self._endpoint.send(self._second, "key", public.to_bytes())
        n = to_bytes([public.n], public.bits // 8)
        self._endpoint.send(SERVER, pair_kind("modulus", *self._pair), n)

    def send_points(self, block: int) -> None:
        """Send one block of points, encrypted."""
        self._endpoint.send(self._second, "points", self._points.message(block))

    def open(self, num_vectors: int) -> None:
        """Decrypt the answers for the next vectors and send T to the server."""
        key = self._points.key
        message = self._endpoint.receive(self._second, "answers")
        answers = ciphertexts_from_bytes(message, num_vectors, key.public.n)
        check_units(product(answers, key.public.n), key.public.n)
        opened = to_bytes(key.decrypt(answers), key.public.bits // 8)
        self._endpoint.send(SERVER, pair_kind("opened", *self._pair), opened)


class Second:
    """The client that computes under the other client's key."""

    def __init__(
        self,
        endpoint: Endpoint,
        first: int,
        codes: np.ndarray,
        num_points: int,
        *,
        key_bits: int = 2048,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._first, self._codes = endpoint, first, codes
        self._num_bits, self._key_bits = 32 * codes.shape[1], key_bits
        slots = Packing(self._num_bits, key_bits).slots
        self._blocks = list(balanced(num_points, slots))
        self._random_bytes = random_bytes
        self._pair = first, endpoint.address

    def receive_key(self) -> None:
        """Receive first's key; draw the seed of the masks and send it to the server."""
        self._key = PublicKey.from_bytes(self._endpoint.receive(self._first, "key"), self._key_bits)
        self._hiding = self._key.hiding_powers(len(self._codes) * len(self._blocks))
        seed = self._random_bytes(SEED_BYTES)
        self._masks = DistanceMasks(seed, self._key.n)
        self._endpoint.send(SERVER, pair_kind("mask_seed", *self._pair), seed)

    def receive_points(self, block: int) -> None:
        """Receive one block of first's points."""
        message = self._endpoint.receive(self._first, "points")
        ciphertexts = ciphertexts_from_bytes(message, self._num_bits, self._key.n)
        num_points = len(self._blocks[block])
        self._distances = PackedDistances(self._key, ciphertexts, num_points, self._hiding)

    def answer(self, vectors: range) -> None:
        """Send encrypted distances of the block's points to some of this client's vectors."""
        answers = self._distances(
            bits_of(self._codes[vectors.start : vectors.stop]),
            self._masks.take(len(vectors)),
            self._random_bytes(len(vectors) * (self._key_bits // 2 + HIDING_BITS) // 8),
        )
        self._endpoint.send(self._first, "answers", to_bytes(answers, self._key_bits // 4))


class Server(PairServer):
    """The server's part for one pair of clients, with n_j points of first's, L bits and the agreed |N|.

    Attributes:
        blocks: first's points that share a plaintext, for each block.
    """

    KINDS = ("modulus", "mask_seed", "opened")

    def __init__(
        self,
        endpoint: Endpoint,
        first: int,
        second: int,
        num_points: int,
        num_bits: int,
        *,
        key_bits: int = 2048,
    ) -> None:
        super().__init__(endpoint, first, second, num_bits)
        self._packing, self._key_bits = Packing(num_bits, key_bits), key_bits
        self.blocks = list(balanced(num_points, self._packing.slots))

    def receive_masks(self) -> None:
        """Receive N from first and the masks' seed from second."""
        self._n = modulus_from_bytes(self._receive(self._first, "modulus"), self._key_bits)
        self._masks = DistanceMasks(self._receive(self._second, "mask_seed"), self._n)

    def combine(self, block: int, vectors: range) -> Block:
        """Distances of one block of first's points to some of second's."""
        points, message = self.blocks[block], self._receive(self._first, "opened")
        opened = plaintexts_from_bytes(message, len(vectors), self._n)
        masks = self._masks.take(len(vectors))
        h = distances(opened, masks, self._n, self._packing, len(points))
        return Block(self._first, self._second, points, vectors, h)


def run_pair(
    first: First, second: Second, server: Server, sizes: tuple[int, int]
) -> Iterator[Block]:
    """Run the protocol of one pair of clients with n_j and n_k points; yields finished blocks."""
    if not all(sizes):
        return
    with server.until_dropout():
        first.send_key()
        second.receive_key()
        server.receive_masks()
        for block, _ in enumerate(server.blocks):
            first.send_points(block)
            second.receive_points(block)
            for vectors in ranges(sizes[1], MESSAGE_VECTORS):
                second.answer(vectors)
                first.open(len(vectors))
                yield server.combine(block, vectors)


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
    """The masks rho, vector by vector, uniform in Z_N, from a seed that the owner does not have.

    The seed is for this run and this pair of clients alone. The stream depends on N: the shares of parties
    with different N do not fit together.
    """

    def __init__(self, seed: bytes, n: mpz) -> None:
        if len(seed) != SEED_BYTES:
            raise ProtocolError(f"a seed has {SEED_BYTES} bytes, got {len(seed)}")
        self._stream = Keystream(derived_seed(seed, f"paillier masks/{n:x}"))
        self._n = n

    def take(self, count: int) -> list[mpz]:
        """Return the next `count` masks."""
        return [uniform_below(self._n, self._bytes) for _ in range(count)]

    def _bytes(self, count: int) -> bytes:
        return self._stream.take(count).tobytes()


def distances(
    opened: Sequence[mpz], masks: Sequence[mpz], n: mpz, packing: Packing, num_points: int
) -> np.ndarray:
    """h from the opened answers T and the masks rho: uint16 [n_b, V]."""
    packed = [(value - mask) % n for value, mask in zip(opened, masks, strict=True)]
    return (packing.num_bits - packing.digits(packed, num_points)).T
