"""The attack on H: solved as stated, as strong as docs/threat-model.md says, weaker with randomized bits.

A server that colludes with one client has H (Algorithm 1, line 5) and the client's vectors a_1 ... a_m. For
another client's vector v, the two together know

    c_i = cos(pi h_i / L),     h_i the distance of v's code to that of a_i,     E[c_i] ~ <a_i, v> / |a_i| |v|

m noisy linear measurements of the direction v / |v|. Let A have the rows a_i / |a_i|. For a uniform prior on
the direction and independent errors of variance pi^2 / (4 L), the best linear estimate is

    v_hat = (A^T A + d pi^2 / (4 L) I)^-1 A^T c.

No protocol prevents this, as each gives H to the server. m < d alone is no protection: m measurements
determine the part of v in the span of the a_i. Plaintext codes with known Pi are the limit for large m.
"""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from threat_model import table

from jaxfed.kernels import hamming, lsh
from jaxfed.privacy import randomized_response
from jaxfed.secure.hamming import masked

NUM_BITS = 4096
NUM_ATTACKED = 50


def directions_from_distances(known, distances, num_bits):
    """v_hat of every attacked point, unit rows [n, d], from a_i [m, d] and h [n, m]."""
    rows = unit_rows(known)
    cosines = np.cos(np.pi / num_bits * np.clip(distances, 0, num_bits))
    num_known, dim = rows.shape
    ridge = dim * np.pi**2 / (4 * num_bits)
    if num_known < dim:
        fitted = np.linalg.solve(rows @ rows.T + ridge * np.eye(num_known), cosines.T)
        return unit_rows(fitted.T @ rows)
    fitted = np.linalg.solve(rows.T @ rows + ridge * np.eye(dim), rows.T @ cosines.T)
    return unit_rows(fitted.T)


def directions_from_codes(bits, planes):
    """sum_l (2 b_l - 1) u_l, normalized; its cosine with the truth is about (1 + pi d / (2 L))^-1/2."""
    return unit_rows((2 * bits.astype(np.float64) - 1) @ planes)


def recovery(directions, vectors):
    """Cosines of recovered directions with the true vectors: 1 = found, 0 = a guess."""
    return np.sum(directions * unit_rows(vectors), axis=1)


def unit_rows(rows):
    rows = np.asarray(rows, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


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
    return directions_from_distances(known, np.asarray(h), NUM_BITS)


def guessed(known, vectors):
    """The colluder's mean direction for everybody, which takes no attack."""
    mean = np.mean(known / np.linalg.norm(known, axis=1, keepdims=True), axis=0)
    return np.tile(mean / np.linalg.norm(mean), (len(vectors), 1))


@pytest.mark.sample(1)
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
        directions_from_codes(bits, np.asarray(planes)),
        guessed(known, vectors),
    ]
    measured = [np.mean(recovery(found, vectors)) for found in directions]
    np.testing.assert_allclose([float(figure) for figure in figures], measured, atol=0.006)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**31))
def test_the_estimate_solves_its_equations(num_known, dim, num_attacked, seed):
    """Both forms of the ridge estimate, for m < d and m >= d, against the normal equations."""
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(num_known, dim))
    h = rng.integers(0, 65, (num_attacked, num_known))
    found = directions_from_distances(known, h, 64)
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
    h = np.arccos(unit_rows(vectors) @ unit_rows(known).T) * 10**12 / np.pi
    found = directions_from_distances(known, h, 10**12)
    np.testing.assert_allclose(found, unit_rows(vectors), atol=1e-6)


def test_one_message_distances_hide_nothing_from_server_and_client_together():
    """The group seed, which every client has, opens what the server was sent: E + u = x."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (6, 64), dtype=np.int8)
    seed = rng.bytes(32)
    masks = masked.point_masks(seed, range(6), 64, 7)
    sent = masked.hidden_points(bits, masks, 7)
    again = masked.point_masks(seed, range(6), 64, 7)
    np.testing.assert_array_equal((sent + again) % 128, bits)
