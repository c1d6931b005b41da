"""The attack on H: solved as stated, as strong as docs/threat-model.md says, weaker with randomized bits."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from threat_model import table

from jaxfed.errors import UsageError
from jaxfed.kernels import hamming, lsh
from jaxfed.privacy import randomized_response, reconstruction
from jaxfed.secure.hamming import masked_distances

NUM_BITS = 4096
NUM_ATTACKED = 50


def gaussian_points(num_known, dim):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, dim)).astype(np.float32) for n in (num_known, NUM_ATTACKED)]


def digits(num_known):
    images = load_digits().data.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order[:num_known]], images[order[num_known : num_known + NUM_ATTACKED]]


def attacked(known, codes, epsilon=0.0):
    """Directions out of the distances between attacked and known points' codes."""
    if epsilon:
        keys = jax.random.split(jax.random.key(1))
        codes = [
            randomized_response.randomize_bits(c, randomized_response.from_key(key), epsilon)
            for c, key in zip(codes, keys, strict=True)
        ]
    h = hamming.distances(*codes)
    if epsilon:
        h = randomized_response.unbiased_distances(h, NUM_BITS, epsilon)
    return reconstruction.directions_from_distances(known, np.asarray(h), NUM_BITS)


def guessed(known, vectors):
    """The colluder's mean direction for everybody, which takes no attack."""
    mean = np.mean(known / np.linalg.norm(known, axis=1, keepdims=True), axis=0)
    return np.tile(mean / np.linalg.norm(mean), (len(vectors), 1))


@pytest.mark.parametrize("row", table("reconstruction"), ids=lambda row: " ".join(row[:3]))
def test_figures_of_the_threat_model(row):
    """H alone; H of bits randomized at eps = 2; codes and Pi; a guess."""
    data, dim, num_known, *figures = row
    if data == "digits":
        known, vectors = digits(int(num_known))
    else:
        known, vectors = gaussian_points(int(num_known), int(dim))
    assert known.shape == (int(num_known), int(dim))
    planes = lsh.hyperplanes(jax.random.key(0), NUM_BITS, int(dim))
    codes = [lsh.sign_bits(points, planes) for points in (vectors, known)]
    bits = np.asarray(lsh.unpack_bits(codes[0]))
    directions = [
        attacked(known, codes),
        attacked(known, codes, epsilon=2.0),
        reconstruction.directions_from_codes(bits, np.asarray(planes)),
        guessed(known, vectors),
    ]
    measured = [np.mean(reconstruction.recovery(found, vectors)) for found in directions]
    np.testing.assert_allclose([float(figure) for figure in figures], measured, atol=0.006)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**31))
def test_the_estimate_solves_its_equations(num_known, dim, num_attacked, seed):
    """Both forms of the ridge estimate, for m < d and m >= d, against the normal equations."""
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(num_known, dim))
    h = rng.integers(0, 65, (num_attacked, num_known))
    found = reconstruction.directions_from_distances(known, h, 64)
    a = known / np.linalg.norm(known, axis=1, keepdims=True)
    normal = a.T @ a + dim * np.pi**2 / (4 * 64) * np.eye(dim)
    expected = np.linalg.solve(normal, a.T @ np.cos(np.pi * h.T / 64)).T
    np.testing.assert_allclose(
        found * np.linalg.norm(expected, axis=1, keepdims=True), expected, atol=1e-9
    )


def test_exact_angles_give_exact_directions():
    """Without the noise of hashing, d independent known points are enough."""
    rng = np.random.default_rng(0)
    known, vectors = rng.normal(size=(5, 5)), rng.normal(size=(7, 5))
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (vectors, known)]
    num_bits = 10**12
    h = np.arccos(unit[0] @ unit[1].T) * num_bits / np.pi
    found = reconstruction.directions_from_distances(known, h, num_bits)
    np.testing.assert_allclose(found, unit[0], atol=1e-6)


def test_zero_vectors_and_no_points():
    known = np.zeros((3, 4))
    found = reconstruction.directions_from_distances(known, np.full((2, 3), 7), 32)
    np.testing.assert_array_equal(found, np.zeros((2, 4)))
    assert reconstruction.directions_from_distances(known, np.zeros((0, 3)), 32).shape == (0, 4)


@pytest.mark.parametrize(
    ("known", "distances", "num_bits"),
    [((3, 4), (2, 4), 32), ((3,), (2, 3), 32), ((3, 4), (3,), 32), ((3, 4), (2, 3), 0)],
)
def test_what_does_not_fit_is_refused(known, distances, num_bits):
    with pytest.raises(UsageError, match=": use "):
        reconstruction.directions_from_distances(np.ones(known), np.ones(distances), num_bits)


def test_one_message_distances_hide_nothing_from_server_and_client_together():
    """The group seed, which every client has, opens what the server was sent: E + u = x."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (6, 64), dtype=np.int8)
    seed = rng.bytes(32)
    masks = masked_distances.point_masks(seed, range(6), 64, 7)
    sent = masked_distances.hidden_points(bits, masks, 7)
    again = masked_distances.point_masks(seed, range(6), 64, 7)
    np.testing.assert_array_equal((sent + again) % 128, bits)
