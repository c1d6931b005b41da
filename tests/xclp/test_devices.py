"""An accelerator gives the labels that a CPU gives; a CPU has nothing to compare, so these are slow."""

import jax
import numpy as np
import pytest

from jaxfed.kernels import knn, lsh
from jaxfed.xclp import propagate_labels


def clients(seed=0):
    """Five clients of 60 points in four overlapping classes, a tenth of them labeled."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(4, size=(5, 60))
    vectors = 0.8 * rng.standard_normal((4, 24))[truth] + rng.standard_normal((5, 60, 24))
    labels = np.where(rng.random(truth.shape) < 0.1, truth, -1)
    return list(vectors.astype(np.float32)), list(labels)


def on_cpu(function, *arguments, **keywords):
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.device_get(function(*arguments, **keywords))


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("hamming", ["plaintext", "masked"])
def test_labels_are_a_cpus(hamming):
    settings = {"num_classes": 4, "num_bits": 512, "hamming": hamming}
    here = propagate_labels(*clients(), **settings)
    there = on_cpu(propagate_labels, *clients(), **settings)
    for ours, theirs in zip(here, there, strict=True):
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        np.testing.assert_allclose(ours.confidences, theirs.confidences, atol=1e-3)


@pytest.mark.slow
@pytest.mark.gpu
def test_neighbors_are_a_cpus():
    vectors = np.concatenate(clients()[0])
    bits = on_cpu(lsh.project_bits, vectors, jax.random.key(0), 512)
    here = np.asarray(lsh.project_bits(vectors, jax.random.key(0), 512))
    assert np.bitwise_count(here ^ bits).sum() <= 1e-4 * 32 * bits.size  # on a hyperplane, nearly
    for found, expected in zip(
        knn.hamming_knn(bits, 10), on_cpu(knn.hamming_knn, bits, 10), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
