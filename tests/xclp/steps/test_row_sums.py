"""Line 14 among a few partners of each client: the labels of plaintext XCLP, and who is refused."""

import numpy as np
import pytest

from jaxfed.xclp import propagate_labels

# Transfers of labels would take longer than all else.
SETTINGS = {"num_classes": 3, "num_bits": 64, "num_neighbors": 3, "alpha": 0.9} | {
    "influence": "columns"
}
SPARSE = {"row_sums": "masked_resilient", "mask_partners": 6}
SLOW = pytest.mark.slow


def data(number=12):
    rng = np.random.default_rng(0)
    y = [rng.integers(3, size=6) for _ in range(number)]
    x = [(4 * np.eye(3)[own] + rng.normal(size=(6, 3))).astype(np.float32) for own in y]
    return x, [np.where(np.arange(6) < 2, own, -1) for own in y]


def labels(**settings):
    found = propagate_labels(*data(), **SETTINGS, **settings)
    return [np.asarray(own.labels) for own in found]


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"label_matrix": "class_balanced"}, marks=SLOW),
        pytest.param({"select": ("alpha:0.5",)}, marks=SLOW),
    ],
)
def test_labels_are_those_in_the_clear(more):
    for ours, plain in zip(labels(**SPARSE, **more), labels(**more), strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_clients_that_leave():
    """One before its upload, whose labels do not count, and one without its sums."""
    found = labels(**SPARSE, presence=("3@row_sums", "9@sums"))
    among_all = labels(row_sums="masked_resilient", presence=("3@row_sums", "9@sums"))
    for ours, theirs in zip(found, among_all, strict=True):
        np.testing.assert_array_equal(ours, theirs)
