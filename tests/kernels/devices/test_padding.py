"""Lengths in steps, and that labels of one-shot methods know nothing of the rows that fill them up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.kernels import devices
from jaxfed.kernels.devices import in_batches, padded_length, padded_rows
from jaxfed.xclp import propagate_labels

CLASSES = 3


@given(st.integers(0, 2**24))
def test_lengths_are_few_and_near(n):
    length = padded_length(n)
    assert length >= max(n, 1)
    assert length % 64 == 0
    assert length - n <= max(256, n / 16)
    assert padded_length(length) == length
    assert padded_length(n + 1) >= length


def test_rows_are_filled_up():
    filled = padded_rows(np.ones((3, 2), np.int32), fill=-1)
    assert (filled.shape, filled.dtype) == ((256, 2), np.int32)
    np.testing.assert_array_equal(filled[:3], 1)
    np.testing.assert_array_equal(filled[3:], -1)
    whole = np.ones((512, 1))
    assert padded_rows(whole) is whole


def clients_of(sizes, seed=0):
    """Vectors around three directions, a few of them labeled, one array a client."""
    rng = np.random.default_rng(seed)
    truth = [rng.integers(CLASSES, size=size) for size in sizes]
    directions = rng.standard_normal((CLASSES, 12))
    vectors = [directions[y] + 0.7 * rng.standard_normal((len(y), 12)) for y in truth]
    labels = [np.where(rng.random(len(y)) < 0.3, y, -1) for y in truth]
    return [v.astype(np.float32) for v in vectors], labels


def without_padding(monkeypatch):
    monkeypatch.setattr(devices, "padded_length", lambda n: n)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        pytest.param({"influence": "columns"}, marks=pytest.mark.slow),
        {"relative_confidence": True, "label_matrix": "class_balanced", "similarity_power": 3.0},
        {"row_sums": "masked", "influence": "columns"},
    ],
    ids=str,
)
@pytest.mark.sample(1)
def test_padding_changes_no_label(monkeypatch, switches):
    vectors, labels = clients_of([40, 0, 7, 58])  # as many as below, and so by the same programs
    parameters = {"num_classes": CLASSES, "num_bits": 256, "num_neighbors": 4, **switches}
    padded = propagate_labels(vectors, labels, **parameters)
    without_padding(monkeypatch)
    plain = propagate_labels(vectors, labels, **parameters)
    for ours, theirs in zip(padded, plain, strict=True):
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        np.testing.assert_allclose(ours.confidences, theirs.confidences, atol=1e-5)
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 4, 8, 11])
def test_batches_are_of_one_shape_and_change_nothing(n):
    x = np.arange(3 * n).reshape(n, 3)
    shapes = []

    def function(batch):
        shapes.append(batch.shape)
        return 2 * batch, batch.sum(axis=1)

    doubled, sums = in_batches(function, x, 4)
    np.testing.assert_array_equal(doubled, 2 * x)
    np.testing.assert_array_equal(sums, x.sum(axis=1))
    assert set(shapes) == {(4, 3)}
