"""Approximate neighbors: most of the true ones, at their true distances, and nobody who may not be one."""

import jax
import numpy as np
import pytest

from jaxfed.kernels import knn, lsh, nn_descent
from jaxfed.kernels.nn_descent import BLOCK, approximate_hamming_knn
from jaxfed.xclp import propagate_labels

N, NUM_BITS, K = 2000, 1280, 5


@pytest.fixture(scope="module")
def planted():
    """Vectors around 40 centers in 12 dimensions, their classes, and their codes."""
    rng = np.random.default_rng(0)
    truth = rng.integers(40, size=N)
    vectors = 1.5 * rng.standard_normal((40, 12))[truth] + rng.standard_normal((N, 12))
    vectors = vectors.astype(np.float32)
    return vectors, truth, lsh.project_bits(vectors, jax.random.key(1), NUM_BITS)


@pytest.fixture(scope="module")
def valid():
    return np.random.default_rng(1).random(N) < 0.9


@pytest.fixture(scope="module")
def found(planted, valid):
    return [np.asarray(part) for part in approximate_hamming_knn(planted[2], K, valid=valid)]


def recall(indices, exact):
    """The share of the true neighbors, of the points that have some."""
    pairs = [(own, true[true >= 0]) for own, true in zip(indices, np.asarray(exact), strict=True)]
    return np.mean([np.isin(true, own).mean() for own, true in pairs if len(true)])


@pytest.fixture
def only_tables(monkeypatch):
    """Search without rounds of descent."""
    monkeypatch.setattr(nn_descent, "NUM_ROUNDS", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("only_tables")
def test_most_of_the_true_neighbors(planted, valid, found):
    exact, _ = knn.hamming_knn(planted[2], K, valid=valid)
    reached = recall(found[0], exact)
    assert reached >= 0.97
    tables = approximate_hamming_knn(planted[2], K, valid=valid)[0]
    assert recall(np.asarray(tables), exact) < reached - 0.01


def test_distances_are_true_and_in_order_and_everybody_is_there_once(planted, valid, found):
    indices, distances = found
    codes = np.asarray(planted[2])
    assert (indices[~valid] == -1).all()
    assert (distances[~valid] == NUM_BITS + 1).all()
    own = np.flatnonzero(valid)
    assert (indices[valid] >= 0).all()
    assert valid[indices[valid]].all()
    assert (indices[valid] != own[:, None]).all()
    true = np.bitwise_count(codes[own][:, None] ^ codes[indices[valid]]).sum(axis=-1)
    np.testing.assert_array_equal(distances[valid], true)
    order = distances[valid].astype(np.int64) * N + indices[valid]
    assert (np.diff(order, axis=1) > 0).all()


def test_the_same_every_time(planted, valid, found):
    again = approximate_hamming_knn(planted[2], K, valid=valid)
    for one, other in zip(found, again, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_where_fewer_exist_they_are_marked(planted):
    few = np.arange(N) < 3
    indices, distances = approximate_hamming_knn(planted[2], K, valid=few)
    exact = knn.hamming_knn(planted[2], K, valid=few)
    np.testing.assert_array_equal(indices, exact[0])
    np.testing.assert_array_equal(distances, exact[1])


@pytest.mark.slow
@pytest.mark.parametrize("num_points", [1537, 1539])
@pytest.mark.sample(1)
def test_nobody_among_equal_points_is_left_alone(planted, num_points):
    """Sorted by any word they are in one order, and the last block of 512 has one or three."""
    bits = np.broadcast_to(np.asarray(planted[2][:1]), planted[2].shape)
    valid = np.arange(N) < num_points
    indices, distances = approximate_hamming_knn(bits, K, valid=valid)
    assert (np.asarray(indices)[valid] >= 0).all()
    assert not np.asarray(distances)[valid].any()


def test_few_points_are_searched_exactly(planted):
    bits = planted[2][: 2 * BLOCK]
    for one, other in zip(approximate_hamming_knn(bits, K), knn.hamming_knn(bits, K), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.usefixtures("only_tables")
def test_what_fills_the_last_block_is_nobody():
    """It has codes of zeros, which are nearer to each of these than they are to each other."""
    n, k = 2 * BLOCK + 100, 5
    one_bit = np.arange(n, dtype=np.uint32)
    codes = np.zeros((n, n // 32 + 1), np.uint32)
    codes[one_bit, one_bit // 32] = 1 << one_bit % 32
    indices, distances = approximate_hamming_knn(codes, k)
    assert (indices < n).all()
    true = np.bitwise_count(codes[:, None] ^ codes[np.asarray(indices)]).sum(axis=-1)
    np.testing.assert_array_equal(distances, true)


@pytest.mark.slow
@pytest.mark.usefixtures("only_tables")
def test_points_that_are_none_take_nobodys_place_in_a_block(planted):
    """Blocks of some points are those that they have without the others."""
    codes = np.tile(planted[2], (2, 1))[: 8 * BLOCK]
    chosen = np.zeros(len(codes), bool)
    chosen[np.random.default_rng(3).permutation(N)[: 3 * BLOCK]] = True
    among_all = approximate_hamming_knn(codes, K, valid=chosen)
    alone = approximate_hamming_knn(codes[chosen], K)
    numbers = np.flatnonzero(chosen)
    np.testing.assert_array_equal(among_all[0][chosen], numbers[np.asarray(alone[0])])
    np.testing.assert_array_equal(among_all[1][chosen], alone[1])


@pytest.mark.slow
def test_xclp_labels_as_by_all_pairs(planted):
    vectors, truth, _ = planted
    shown = np.where(np.arange(N) % 10 == 0, truth % 8, -1)
    clients = np.array_split(vectors, 3), np.array_split(shown, 3)
    labels, scores = {}, {}
    for neighbors in ("exact", "approximate"):
        predictions = propagate_labels(
            *clients, num_classes=8, num_bits=NUM_BITS, neighbors=neighbors
        )
        labels[neighbors] = np.concatenate([prediction.labels for prediction in predictions])
        scores[neighbors] = np.concatenate([prediction.scores for prediction in predictions])
    assert not np.array_equal(scores["exact"], scores["approximate"])
    assert np.mean(labels["exact"] == labels["approximate"]) >= 0.97
    right = {neighbors: np.mean(own == truth % 8) for neighbors, own in labels.items()}
    assert right["approximate"] >= right["exact"] - 0.01
