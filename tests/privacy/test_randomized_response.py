"""Randomized response: probabilities, unbiased estimates, budgets, and XCLP over it."""

import itertools
import math

import gmpy2
import jax
import numpy as np
import pytest
from dense_xclp import clustered_clients
from hypothesis import given
from hypothesis import strategies as st

from jaxfed import xclp
from jaxfed.kernels import lsh
from jaxfed.privacy import randomized_response as rr
from jaxfed.xclp.steps.row_sums import client_scores

SIGNIFICANCE = 1e-6


def bits_of(codes):
    return np.unpackbits(np.asarray(codes).view(np.uint8), axis=1, bitorder="little")


@given(st.floats(1e-3, 20))
def test_a_bit_is_as_private_as_stated(epsilon):
    """The likelihood ratio of the two answers is e^eps."""
    q = rr.flip_probability(epsilon)
    assert 0 < q < 0.5
    assert math.log((1 - q) / q) == pytest.approx(epsilon)


def test_noise_depends_on_the_key_and_not_on_the_neighbors():
    codes = np.zeros((300, 2), np.uint32)
    noisy = np.asarray(rr.randomize_bits(codes, rr.from_key(jax.random.key(1)), 1.0))
    np.testing.assert_array_equal(
        noisy[:7], rr.randomize_bits(codes[:7], rr.from_key(jax.random.key(1)), 1.0)
    )
    assert np.any(
        noisy != np.asarray(rr.randomize_bits(codes, rr.from_key(jax.random.key(2)), 1.0))
    )
    assert len(np.unique(noisy, axis=0)) == 300  # no row has another's noise, in whatever block
    assert rr.randomize_bits(codes[:0], rr.from_key(jax.random.key(1)), 1.0).shape == (0, 2)


def test_noise_by_content_is_a_codes_own_in_any_call_and_place():
    codes = np.random.default_rng(0).integers(0, 2**32, (300, 4), np.uint32)

    def flips(asked):
        noisy = rr.randomize_bits(asked, rr.from_content(jax.random.key(1), asked), 1.0)
        return bits_of(noisy) ^ bits_of(asked)

    together = flips(codes)
    np.testing.assert_array_equal(flips(codes[:0]), together[:0])
    np.testing.assert_array_equal(flips(codes[::-1]), together[::-1])
    # Two calls of one row each do not share a mask: the server would have the difference of two codes.
    np.testing.assert_array_equal(flips(codes[5:6]), together[5:6])
    q = rr.flip_probability(1.0)
    assert together.mean() == pytest.approx(q, abs=0.012)
    assert (together[1:] ^ together[0]).mean() == pytest.approx(2 * q * (1 - q), abs=0.05)


def test_expected_distance_by_enumeration():
    """E[h'] over all flips of two 2-bit codes, summed out, gives back h."""
    epsilon = 0.7
    q = rr.flip_probability(epsilon)
    for a, b in itertools.product(range(4), repeat=2):
        expected = sum(
            q ** (x.bit_count() + y.bit_count())
            * (1 - q) ** (4 - x.bit_count() - y.bit_count())
            * float(rr.unbiased_distances(np.int32(((a ^ x) ^ (b ^ y)).bit_count()), 2, epsilon))
            for x, y in itertools.product(range(4), repeat=2)
        )
        assert expected == pytest.approx((a ^ b).bit_count(), abs=1e-5)


@pytest.mark.parametrize("num_classes", [2, 10])
def test_expected_one_hot_is_the_true_one(num_classes):
    """The expectation over all answers, summed out: the identity matrix, and zero without a label."""
    epsilon = 1.3
    keep, other = rr.answer_probabilities(epsilon, num_classes)
    answers = rr.unbiased(np.eye(num_classes), num_classes, epsilon)
    probabilities = np.full((num_classes, num_classes), other)
    np.fill_diagonal(probabilities, keep)
    np.testing.assert_allclose(probabilities @ answers, np.eye(num_classes), atol=1e-5)
    np.testing.assert_allclose(answers.sum(axis=1), 1, atol=1e-5)
    assert not rr.unbiased(np.zeros((2, num_classes)), num_classes, epsilon).any()


@pytest.mark.parametrize(
    ("epsilon", "num_classes"), [(0.3, 3), (2.0, 10), (17.0, 2), (30.0, 7), (60.0, 4)]
)
def test_answers_are_exact_at_any_epsilon(epsilon, num_classes):
    """t words of 2^64 for each other class, so that the ratio is at most e^eps and never without noise.

    With probabilities in float32 (p_1 = 1 from eps = 17 on) labels were kept for certain.
    """
    t = rr.threshold(epsilon, num_classes, 64)
    with gmpy2.context(precision=200):
        assert t == gmpy2.ceil(2**64 / (gmpy2.exp(gmpy2.mpfr(epsilon)) + num_classes - 1))
    kept = 2**64 - (num_classes - 1) * t
    assert 0 < t < kept
    assert math.log(kept) - math.log(t) <= epsilon + 1e-12
    if epsilon < 40:
        assert math.log(kept) - math.log(t) == pytest.approx(epsilon, abs=1e-6)
    edges = [(number * t, (number + 1) * t - 1) for number in range(num_classes - 1)]
    for label in range(num_classes):
        others = [other for other in range(num_classes) if other != label]
        words = np.array([*edges, ((num_classes - 1) * t, 2**64 - 1)], np.uint64)
        answers = rr.answers(np.full(words.size, label), words.reshape(-1), num_classes, epsilon)
        np.testing.assert_array_equal(answers.reshape(-1, 2)[:, 0], [*others, label])
        np.testing.assert_array_equal(answers.reshape(-1, 2)[:, 1], [*others, label])
    np.testing.assert_array_equal(
        rr.answers(np.array([-1]), words[0, :1], num_classes, epsilon), -1
    )


def test_every_bit_of_a_word_counts():
    """Words just below and at the threshold, which no draw of a test would hit."""
    bits = rr.threshold(1.0, 2, 32)
    drawn = np.array([[bits - 1, bits] * 16], np.uint32)
    flipped = rr.randomize_bits(np.zeros((1, 1), np.uint32), lambda rows, words: drawn, 1.0)
    np.testing.assert_array_equal(bits_of(flipped), [[1, 0] * 16])
    t = rr.threshold(30.0, 7, 64)
    drawn = np.array([t - 1, t, 6 * t - 1, 6 * t, 2**63], np.uint64).view(np.uint32).reshape(-1, 2)
    answers = rr.randomize_labels(np.zeros(5, int), lambda rows, words: drawn, 7, 30.0)
    np.testing.assert_array_equal(answers, [1, 2, 6, 0, 0])


def blobs(sizes=(60, 50, 40), labeled=0.4):
    return clustered_clients(sizes, labeled=labeled)


SETTINGS = {"num_classes": 3, "num_bits": 256}  # of all tests, which so share their programs


def test_classes_are_balanced_by_unbiased_counts():
    """By the matrix of answers that was inverted; a count that noise makes less than 1 is 1."""
    p = xclp.Parameters(num_classes=3, label_epsilon=1.5, label_matrix="class_balanced")
    keep, other = rr.answer_probabilities(1.5, 3)
    answers = np.full((3, 3), other) + (keep - other) * np.eye(3)
    counts, z = np.array([[12.0, 5.0, 0.25]]), np.random.default_rng(0).random((7, 3))
    scores = client_scores(z @ answers, counts @ answers, p)
    np.testing.assert_allclose(scores, z / [12, 5, 1], atol=1e-5)


# --- safeguards of XCLP over randomized answers ----------------------------------------------------


def keys_used(monkeypatch):
    """Key data of Pi and of the two sources of noise, in one run of Algorithm 1."""
    used = {"noise": []}
    from_key, hyperplanes = rr.from_key, lsh.hyperplanes

    def noise(key):
        used["noise"].append(key)
        return from_key(key)

    def planes(key, *arguments):
        used["pi"] = key
        return hyperplanes(key, *arguments)

    monkeypatch.setattr(rr, "from_key", noise)
    monkeypatch.setattr(lsh, "hyperplanes", planes)
    vectors, labels, _ = blobs(sizes=(9, 8))
    xclp.propagate_labels(vectors, labels, **SETTINGS, bit_epsilon=2.0, label_epsilon=2.0)
    return used


def test_keys_of_noise_are_their_own(monkeypatch):
    """Neither Pi's, nor of one of its rows, nor one for bits and for labels."""
    used = keys_used(monkeypatch)
    bits, labels = used["noise"]
    rows = jax.vmap(jax.random.fold_in, (None, 0))(used["pi"], np.arange(256, dtype=np.uint32))
    seen = [*map(tuple, np.asarray(jax.random.key_data(rows)).tolist())]
    seen += [
        tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in (used["pi"], bits, labels)
    ]
    assert len(set(seen)) == 256 + 3


def test_the_graph_is_of_unbiased_distances():
    """As if the estimates had been measured; without the correction all edges would be too weak."""
    num_bits, epsilon = 2048, 1.5
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**32, (40, num_bits // 32), dtype=np.uint32) & 0x0F0F0F0F
    draw = rr.from_key(jax.random.key(0))
    noisy = np.asarray(rr.randomize_bits(codes, draw, epsilon))
    h = np.bitwise_count(noisy[:, None] ^ noisy).sum(axis=2, dtype=np.int32)
    indices = (np.arange(40)[:, None] + np.arange(1, 11)) % 40
    distances = np.take_along_axis(h, indices, axis=1)
    p = xclp.Parameters(num_classes=2, num_bits=num_bits, bit_epsilon=epsilon)
    graph = xclp.server_graph(indices, distances, p)
    q = rr.flip_probability(epsilon)
    s = 2 * q * (1 - q)
    estimates = np.maximum((distances - num_bits * s) / (1 - 2 * s), 0)
    weights = np.maximum(np.cos(np.pi * estimates / num_bits), 0)
    listed = np.zeros((40, 40))
    np.put_along_axis(listed, indices, weights, axis=1)
    expected = np.sqrt((listed + listed.T).sum(axis=1))
    np.testing.assert_allclose(graph.root_degrees[:40], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "protocols",
    [{}, {"row_sums": "masked", "influence": "columns"}, {"hamming": "masked"}],
    ids=str,
)
@pytest.mark.sample(2)
def test_noise_is_the_operating_systems_where_there_is_a_session(protocols, monkeypatch):
    """Who has the seed could take it off; a plaintext simulation repeats, a session does not."""
    vectors, labels, _ = blobs(sizes=(30, 30))
    seen = []
    randomize = rr.randomize_bits
    monkeypatch.setattr(
        rr, "randomize_bits", lambda *args: seen.append(np.asarray(randomize(*args))) or seen[-1]
    )
    given = []
    answers = rr.randomize_labels
    monkeypatch.setattr(
        rr, "randomize_labels", lambda *args: given.append(answers(*args)) or given[-1]
    )
    for _ in range(2):
        xclp.propagate_labels(
            vectors,
            labels,
            **SETTINGS,
            bit_epsilon=1.0,
            label_epsilon=0.5,
            **protocols,
        )
    assert np.array_equal(*seen) == (not protocols)
    assert np.array_equal(*given) == (not protocols)


@pytest.mark.parametrize("bit", [0, 31, 32, 63, 64, 200, 255])
def test_all_bits_of_the_seed_count(bit):
    assert (
        jax.random.key_data(xclp.setup(5)).tolist()
        == jax.random.key_data(jax.random.key(5)).tolist()
    )
    one, other = (np.asarray(jax.random.key_data(xclp.setup(seed))) for seed in (5, 5 ^ 1 << bit))
    assert (one != other).any()
