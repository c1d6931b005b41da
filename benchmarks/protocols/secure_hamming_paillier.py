"""Secure Hamming distances by Paillier encryption, against the same sums without packing.

Peers compute the paper's sum for one point and one vector, Enc(h - |x|), from L ciphertexts of single bits.
Encryption, masks and decryption are included in our time only. Peers do so for a few pairs of points, and
their times are scaled up to all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz
from phe.paillier import EncryptedNumber

from benchmarks import inputs
from benchmarks.protocols.loopback import Loopback, Run, a_pair, joined, promised
from benchmarks.timing.contest import Contest
from jaxfed.secure.hamming import paillier_packed
from jaxfed.secure.hamming.pair import bits_of, ranges
from jaxfed.secure.primitives.paillier import Encryption, PrivateKey, generate_key
from jaxfed.secure.primitives.products import product
from jaxfed.secure.session.endpoint import SERVER

N, M, NUM_BITS = 500, 500, 4096
_PEER_PAIRS = 4  # pairs of points that a peer sums up for

Sums = Callable[[], list[mpz]]


def distances(with_peers: bool) -> Iterator[Contest]:
    """`phe` with keys of 2,048 bits, whole, and the evaluating client's part alone.

    `gmpy2_sum` multiplies L ciphertexts or inverses, as in the paper. `gmpy2_sum_of_ones` multiplies only the
    L / 2 with x_l = 1, by the identity that `paillier_packed` uses too. `phe_loop` adds and subtracts
    numbers of `phe`. Keys are generated beforehand.
    """
    key = generate_key()
    a, b = (np.asarray(inputs.codes(size, NUM_BITS, "uniform")) for size in (N, M))
    case = {"n": N, "m": M, "num_bits": NUM_BITS, "key_bits": key.public.bits}
    part = _PEER_PAIRS / (N * M)
    sums = _peer_sums(key, a, b) if with_peers else {}

    def check(ours: Run, theirs: list[mpz]) -> str:
        opened = [int(value) for value in key.decrypt(theirs)]
        weights = bits_of(b[: len(theirs)]).sum(axis=1, dtype=np.int64).tolist()
        expected = ours.distances[0, : len(theirs)].tolist()
        found = [(v + w) % int(key.public.n) for v, w in zip(opened, weights, strict=True)]
        assert found == expected, "packed distances differ from the peer's"
        return f"equal in {len(theirs)} pairs"

    printed = ("gmpy2_sum", "phe_loop")
    yield Contest(
        task="secure Hamming, phe",
        case=case,
        ours=partial(_packed, key, a, b),
        peers={name: sums[name] for name in printed if with_peers},
        agreement=check,
        targets={"gmpy2_sum": 300, "phe_loop": 1500},
        parts=dict.fromkeys(printed, part),
        figures=a_pair,
        at_most=promised(75, 32),
    )
    name = "gmpy2_sum_of_ones"
    yield Contest(
        task="secure Hamming, phe, sums alone",
        case=case,
        ours=_evaluation(key, a, b),
        peers={name: sums[name]} if with_peers else {},
        targets={name: 300},
        parts={name: part},
        figures=lambda _, seconds: {"us a pair": 1e6 * seconds / (N * M)},
    )


def _packed(key: PrivateKey, a: np.ndarray, b: np.ndarray) -> Run:
    network = Loopback()
    blocks = paillier_packed.run_pair(
        paillier_packed.First(network.endpoint(0), 1, paillier_packed.EncryptedPoints(a, key)),
        paillier_packed.Second(network.endpoint(1), 0, b, len(a)),
        paillier_packed.Server(network.endpoint(SERVER), 0, 1, len(a), 32 * a.shape[1]),
        (len(a), len(b)),
    )
    return Run(joined(blocks, (len(a), len(b))), network.num_bytes)


def _evaluation(key: PrivateKey, a: np.ndarray, b: np.ndarray) -> Callable[[], int]:
    """Return the work of the client without the key: check, sum, mask, re-randomize; it counts sent bytes."""
    points = paillier_packed.EncryptedPoints(a, key)

    def evaluate() -> int:
        network = Loopback()
        first = paillier_packed.First(network.endpoint(0), 1, points)
        second = paillier_packed.Second(network.endpoint(1), 0, b, len(a))
        first.send_key()
        second.receive_key()
        for block in range(len(points.blocks)):
            first.send_points(block)
            second.receive_points(block)
            for vectors in ranges(len(b), paillier_packed.MESSAGE_VECTORS):
                second.answer(vectors)
        return network.num_bytes

    return evaluate


def _peer_sums(key: PrivateKey, a: np.ndarray, b: np.ndarray) -> dict[str, Sums]:
    """Each peer's sums of a's first point with b's first vectors, ready to run."""
    public, n_squared = key.public.phe, key.public.n_squared
    encryption = Encryption(key, NUM_BITS)
    exponents = np.random.default_rng(0).bytes(NUM_BITS * encryption.exponent_bytes)
    y = encryption([mpz(bit) for bit in bits_of(a[:1])[0].tolist()], exponents)
    vectors = bits_of(b[:_PEER_PAIRS]).astype(bool).tolist()
    total = product(y, n_squared)
    numbers = [EncryptedNumber(public, int(ciphertext)) for ciphertext in y]

    def gmpy2_sum(x: list[bool]) -> mpz:
        zeros = ones = mpz(1)
        for bit, ciphertext in zip(x, y, strict=True):
            if bit:
                ones = ones * ciphertext % n_squared
            else:
                zeros = zeros * ciphertext % n_squared
        return zeros * gmpy2.invert(ones, n_squared) % n_squared

    def gmpy2_sum_of_ones(x: list[bool]) -> mpz:
        ones = mpz(1)
        for bit, ciphertext in zip(x, y, strict=True):
            if bit:
                ones = ones * ciphertext % n_squared
        return total * gmpy2.invert(ones * ones % n_squared, n_squared) % n_squared

    def phe_loop(x: list[bool]) -> mpz:
        result = EncryptedNumber(public, 1)  # zero
        for bit, number in zip(x, numbers, strict=True):
            result = result - number if bit else result + number
        return mpz(result.ciphertext(be_secure=False))

    def all_vectors(peer: Callable[[list[bool]], mpz]) -> list[mpz]:
        return [peer(x) for x in vectors]

    peers: tuple[Callable[..., Any], ...] = (gmpy2_sum, gmpy2_sum_of_ones, phe_loop)
    return {peer.__name__: partial(all_vectors, peer) for peer in peers}
