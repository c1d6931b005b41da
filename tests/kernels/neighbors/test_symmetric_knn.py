"""The search that counts a distance once for both of its points, with tiles and blocks of a few points.

Codes, and vectors along axes, whose cosines are exact.

Three and four devices are tried by the process of its own that `test_spread` starts.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kernels as reference

from jaxfed.kernels import hamming, nearest, symmetric_knn
from jaxfed.kernels.devices import by_rows, everywhere, points_mesh, spread
from jaxfed.kernels.distances import COSINES, can_number, directions, hamming_distances

KERNEL = hamming._KERNELS["popcount"]
DEVICES = [
    pytest.param(count, id=f"{count}_devices") for count in (2, 3, 4) if count <= jax.device_count()
]


def random_codes(n, num_words):
    return np.random.default_rng(0).integers(0, 2**32, (n, num_words), dtype=np.uint32)


def tied_codes(n, num_words):
    """Few random bits, in the first and the last word: most distances are equal, many points too."""
    codes = np.zeros((n, num_words), np.uint32)
    codes[:, [0, -1]] = np.random.default_rng(0).integers(0, 4, (n, 2))
    return codes


def expected(bits, k, valid):
    """By one stable sort a row."""
    missing = bits.shape[1] * 32 + 1
    distances = np.bitwise_count(bits[:, None] ^ bits).sum(axis=2, dtype=np.int64)
    distances[:, ~valid] = missing
    np.fill_diagonal(distances, missing)
    indices = np.argsort(distances, axis=1, kind="stable")[:, :k]
    distances = np.take_along_axis(distances, indices, axis=1)
    found = valid[:, None] & (distances < missing)
    return np.where(found, indices, -1), np.where(found, distances, missing)


@cache  # tests with the same arguments and shapes share a program
def search_of(between, k, mesh):
    def of(rows):
        def search(points, valid):
            best = symmetric_knn.neighbors(between, points, valid, k, rows)
            return nearest.as_rows(best, valid, k, between.missing)

        return search

    return jax.jit(by_rows(of, mesh))


def found_by(between, points, valid, k, num_devices=1):
    """As `jaxfed.kernels.knn` does it, with tiles of another width."""
    mesh = points_mesh(num_devices) if num_devices > 1 else None
    arrays = (jnp.asarray(points), jnp.asarray(valid))
    if mesh is not None:
        arrays = (spread(points, mesh), spread(valid, mesh, fill=False))
    found = search_of(between, k, mesh)(*arrays)
    return [np.asarray(array)[: len(points)] for array in everywhere(found)]


def between_codes(num_words, width, block):
    between = hamming_distances(KERNEL._replace(width=width), num_words)
    return between._replace(block_points=block)


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("make", "n", "num_words", "k", "width", "block", "share_valid"),
    [
        pytest.param(
            tied_codes, 301, 9, 3, 32, 100, 0.8, id="many blocks, ties, padding, odd words"
        ),
        pytest.param(tied_codes, 700, 1, 5, 96, 10_000, 1, id="one block, ties"),
        pytest.param(random_codes, 700, 9, 10, 64, 200, 1, id="many blocks, words left over"),
        pytest.param(random_codes, 300, 12, 2, 32, 100, 0.02, id="fewer valid than neighbors"),
        pytest.param(random_codes, 300, 12, 2, 32, 100, 0, id="none valid"),
    ],
)
@pytest.mark.sample(1)
def test_equals_the_oracle(make, n, num_words, k, width, block, share_valid):
    bits, valid = make(n, num_words), np.random.default_rng(1).random(n) < share_valid
    between = between_codes(num_words, width, block)
    assert_equal(found_by(between, bits, valid, k), expected(bits, k, valid))


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", DEVICES)
def test_over_devices_equals_the_oracle(num_devices):
    """Two and four devices meet twice half way, and share what is left; one and three never do."""
    n, k = 1001, 3
    bits, valid = tied_codes(n, 2), np.random.default_rng(1).random(n) < 0.8
    found = found_by(between_codes(2, 64, 128), bits, valid, k, num_devices)
    assert_equal(found, expected(bits, k, valid))


def along_axes(n):
    """Many equal cosines, all of them 1, 0 or -1, and zero vectors."""
    rng = np.random.default_rng(0)
    return np.eye(12, dtype=np.float32)[rng.integers(0, 12, n)] * rng.integers(
        -1, 2, (n, 1)
    ).astype(np.float32)


@pytest.mark.parametrize(
    ("n", "k", "width", "block", "share_valid", "num_devices"),
    [
        # By the program of the next test.
        pytest.param(300, 2, 32, 100, 0.02, 1, id="fewer valid than neighbors"),
        pytest.param(400, 10, 64, 10_000, 1, 1, id="one block"),
        pytest.param(401, 3, 32, 128, 0.8, 1, id="many blocks, padding"),
        pytest.param(300, 2, 32, 100, 0, 1, id="none valid"),
        *(
            pytest.param(401, 3, 32, 128, 0.8, *count.values, id=f"over {count.id}")
            for count in DEVICES
        ),
    ],
)
@pytest.mark.sample(1)
def test_cosines_equal_the_oracle(n, k, width, block, share_valid, num_devices):
    vectors, valid = along_axes(n), np.random.default_rng(1).random(n) < share_valid
    between = COSINES._replace(width=width, block_points=block)
    indices, distances = found_by(between, vectors, valid, k, num_devices)
    expected_indices, cosines = reference.cosine_knn(vectors, k, valid)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_array_equal(distances, -cosines)


def test_cosines_of_any_vectors_and_of_none():
    """A vector that is not finite has no neighbors, and takes none from others."""
    n, k = 300, 2  # as above, by the same program
    vectors = np.random.default_rng(0).standard_normal((n, 12)).astype(np.float32)
    vectors[100:200] = vectors[:100]
    finite = np.arange(n) % 100 != 7
    given = np.where(finite[:, None], np.asarray(directions(jnp.asarray(vectors))), np.nan)
    between = COSINES._replace(width=32, block_points=100)
    indices, distances = found_by(between, given.astype(np.float32), np.ones(n, bool), k)
    expected_indices, cosines = reference.cosine_knn(vectors, k, finite)
    first = np.where(indices // 100 == 1, indices - 100, indices)  # of two equal vectors
    expected = np.where(expected_indices // 100 == 1, expected_indices - 100, expected_indices)
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_allclose(-distances[finite], cosines[finite], atol=2e-6)


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.sample(1)
def test_half_of_the_distances_are_counted(num_devices):
    """Tiles are counted as they are compared, on both of two devices."""
    counted = []

    def distances(a, b, start):
        jax.debug.callback(lambda: counted.append(1))
        return KERNEL.distances(a, b, start)

    n, width = 640, 64
    kernel = KERNEL._replace(width=width, distances=distances)
    between = hamming_distances(kernel, 1)
    found_by(between, random_codes(n, 1), np.ones(n, bool), 2, num_devices)
    jax.effects_barrier()
    tiles = n // width
    assert len(counted) == tiles * (tiles + 1) // 2


@pytest.mark.parametrize(
    ("n", "num_words", "k", "is_suited"),
    [
        (10_000, 128, 10, True),
        (100_000, 128, 10, True),
        (2048, 128, 10, False),  # a tile or two
        (10_000, 128, 100, False),  # as many candidates as points
        (10_000, 2**12, 10, True),
        (10_000, 2**13, 10, False),  # a distance and a number in more than 31 bits
    ],
)
def test_where_it_is_used(n, num_words, k, is_suited):
    width = KERNEL.width
    assert (symmetric_knn.suits(n, k, width) and can_number(num_words, k, width)) == is_suited
