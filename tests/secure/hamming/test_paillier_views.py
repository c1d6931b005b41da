"""Who sees what in `phe`: views, distinguishing games, and safeguards that are missed."""

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from paillier_pair import (
    BITS,
    KEY,
    VIEWS,
    N,
    Recorded,
    codes_of,
    distances,
    integers,
    opened,
    parties,
    plain,
    replayed,
)
from recording_network import Network
from scipy import stats

from jaxfed.secure.hamming import paillier_packed
from jaxfed.secure.hamming.pair import bits_of
from jaxfed.secure.primitives import paillier
from jaxfed.secure.primitives.packing import Packing
from jaxfed.secure.session.endpoint import SERVER

# --- who sees what -------------------------------------------------------------------------------


def test_who_receives_what():
    network = Network()
    distances(network, codes_of(2, 1), codes_of(2, 1))
    for address, kinds in VIEWS.items():
        assert {message.kind for message in network.seen_by(address)} == kinds


def test_server_view_is_the_same_for_flipped_points():
    """Other inputs with the same H: every byte that the server receives is the same."""
    a, b = codes_of(6, 2), codes_of(5, 2, seed=1)
    seen = []
    for x, y in ((a, b), (~a, ~b)):
        network = Network()
        found = distances(network, x, y, random_bytes=replayed())
        np.testing.assert_array_equal(found, plain(a, b))
        seen.append([m.payload for m in network.seen_by(SERVER)])
    assert seen[0] == seen[1]


class Given:
    """Masks that a test chose."""

    def __init__(self, masks):
        self.masks = masks

    def take(self, count):
        return self.masks[:count]


def exponent_shifts(exponents, bits):
    """2 sum_{l: x_l = 1} e_l - sum_l e_l, for every vector x."""
    return [
        sum(e if bit else -e for e, bit in zip(exponents, row, strict=True))
        for row in bits.tolist()
    ]


def test_owner_view_is_the_same_for_any_vectors_of_its_partner():
    """Coupling: rho' = rho + V - V' and s' = s + shift - shift' give the same bytes for any other x."""
    a, b, other = codes_of(6, 1), codes_of(4, 1, seed=1), codes_of(4, 1, seed=2)
    source = Recorded()
    points = paillier_packed.EncryptedPoints(a, KEY, random_bytes=source)
    points.message(0)
    exponents = integers(b"".join(source.given), BITS // 16)
    packed, shifts = (
        [
            [
                sum(int(32 - h) * 33**i for i, h in enumerate(column))
                for column in plain(a, y).T.tolist()
            ]
            for y in (b, other)
        ],
        [exponent_shifts(exponents, bits_of(y)) for y in (b, other)],
    )
    masks = [paillier.uniform_below(N, replayed(3)) for _ in b]
    hiding = [1 << 200, 3 << 190, 5 << 180, 7 << 170]
    seen, server_masks = [], []
    for run, y in enumerate((b, other)):
        network = Network()
        first, second, _ = parties(network, a, y, points=points)
        first.send_key()
        second.receive_key()
        rho = [(mask + packed[0][m] - packed[run][m]) % N for m, mask in enumerate(masks)]
        s = [value + shifts[0][m] - shifts[run][m] for m, value in enumerate(hiding)]
        second._masks = Given(rho)
        second._random_bytes = lambda size, s=s: paillier.to_bytes(s, size // len(s))
        first.send_points(0)
        second.receive_points(0)
        second.answer(range(4))
        first.open(4)
        seen.append([m.payload for m in network.seen_by(0)])
        seen[-1].append(network.log[-1].payload)  # T
        server_masks.append(rho)
    assert seen[0] == seen[1]
    assert server_masks[0] != server_masks[1]


def uniform_in_n(values, num_bins=64):
    counts = np.bincount([int(v * num_bins // N) for v in values], minlength=num_bins)
    return stats.chisquare(counts).pvalue


@pytest.mark.parametrize("fill", [0, 2**32 - 1])
def test_opened_values_are_uniform(fill):
    """Constant points, V = 0 or the largest: T is uniform in Z_N all the same."""
    a = np.zeros((50, 1), np.uint32)
    network = Network()
    distances(network, a, np.full((2000, 1), fill, np.uint32), random_bytes=replayed(fill))
    values = opened(network)
    assert len(set(values)) == 2000
    assert uniform_in_n(values) > 1e-6


def test_masks_are_fresh_in_every_run_and_for_every_vector():
    """The same points again: the owner sees no T twice. (T - T' under one rho would be V - V'.)"""
    a = codes_of(3, 1)
    b = np.repeat(a, 4, axis=0)
    seen = []
    for _ in range(3):
        network = Network()
        distances(network, a, b)
        seen += opened(network)
    assert len(set(seen)) == 36


# --- distinguishing games ------------------------------------------------------------------------


def recognized(answer, ciphertexts, candidates):
    """Which candidate x explains the answer's randomness: answer = prod_l c_l^(+-1) mod N."""
    for number, bits in enumerate(candidates.tolist()):
        expected = mpz(1)
        for bit, ciphertext in zip(bits, ciphertexts, strict=True):
            factor = ciphertext if bit else gmpy2.invert(ciphertext, N)
            expected = expected * factor % N
        if answer % N == expected:
            return number
    return None


@pytest.mark.parametrize("randomized", [True, False])
def test_the_key_owner_recognizes_answers_unless_they_are_randomized(randomized):
    """60 games: x is one of two; the owner compares the answer with products of its ciphertexts."""
    a, candidates = codes_of(2, 1), codes_of(2, 1, seed=1)
    points = paillier_packed.EncryptedPoints(a, KEY)
    ciphertexts = integers(points.message(0), BITS // 4)
    coins, wins = np.random.default_rng(0), 0
    for _ in range(60):
        secret, guess = coins.integers(0, 2, 2)
        network = Network()
        source = {} if randomized else {"random_bytes": bytes}  # s = 0 (and a seed of zeros)
        distances(network, a, candidates[secret : secret + 1], points=points, **source)
        [message] = network.seen_by(0)
        [answer] = integers(message.payload, BITS // 4)
        found = recognized(answer, ciphertexts, bits_of(candidates))
        wins += (guess if found is None else found) == secret
    assert 15 <= wins <= 45 if randomized else wins == 60


@pytest.mark.parametrize("shortened", [False, True])
def test_exponents_hide_even_from_one_who_takes_logarithms(shortened, monkeypatch):
    """x = 0 or 1, ... L times: with exponents no longer than the owner's own their sum tells which.

    The statistical distance is at most L 2^(|N| / 2) over the number of values of s.
    """
    if shortened:
        monkeypatch.setattr(paillier, "HIDING_BITS", 0)
        monkeypatch.setattr(paillier_packed, "HIDING_BITS", 0)
    a = codes_of(1, 1)
    source = Recorded()
    points = paillier_packed.EncryptedPoints(a, KEY, random_bytes=source)
    points.message(0)
    own = integers(b"".join(source.given), BITS // 16)
    secrets_ = np.random.default_rng(1).integers(0, 2, 200)
    b = np.where(secrets_[:, None] == 1, np.uint32(2**32 - 1), np.uint32(0))
    network, source = Network(), Recorded()
    distances(network, a, b, points=points, random_bytes=source)
    size = len(source.given[1]) // 200  # of s
    hiding = integers(b"".join(source.given[1:]), size)
    assert shortened or 2 ** (8 * size) // 2**120 >= 32 * 2 ** (BITS // 2)
    logs = [s + t for s, t in zip(hiding, exponent_shifts(own, bits_of(b)), strict=True)]
    answers = integers(network.seen_by(0)[0].payload, BITS // 4)
    for log, answer in zip(logs, answers, strict=True):
        assert gmpy2.powmod(KEY.public.base, log, N) == answer % N
    wins = np.sum((np.array([log >> (8 * size - 1) for log in logs]) > 0) == secrets_)
    assert wins == 200 if shortened else 60 <= wins <= 140


# --- mutations: each safeguard removed is noticed ------------------------------------------------


def test_without_masks_the_owner_reads_the_distances(monkeypatch):
    monkeypatch.setattr(paillier_packed.DistanceMasks, "take", lambda self, count: [mpz(0)] * count)
    network, a, b = Network(), codes_of(3, 1), codes_of(5, 1, seed=1)
    distances(network, a, b)
    digits = Packing(32, BITS).digits([mpz(t) for t in opened(network)], 3)
    np.testing.assert_array_equal(32 - digits.T, plain(a, b))
