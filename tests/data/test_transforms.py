"""Scaled features against NumPy's means and deviations; principal components against an SVD."""

import numpy as np
import pytest

from jaxfed.config import base
from jaxfed.config.data.preprocessing import Parts, preprocessed
from jaxfed.data.encoding import principal_components, standardization

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("shape", [(7, 5), (300_000, 8), (3000, 28, 28, 1)])
def test_blocks_of_rows_do_not_change_a_bit(shape, dtype):
    x = (50 * RNG.standard_normal(shape, np.float32) + 100).astype(dtype)
    is_measured = RNG.random(len(x)) < 0.8
    for rows in (slice(None), is_measured):
        mean, scale = standardization(x, rows)
        np.testing.assert_array_equal(mean, x[rows].mean(axis=0, dtype=np.float64))
        np.testing.assert_array_equal(scale, 1 / x[rows].std(axis=0, dtype=np.float64))


def test_a_constant_feature_becomes_zero():
    x = np.array([[0.1, 1], [0.1, 2], [0.1, 3]], np.float32)
    scaled = standardization(x)(x, x[:1])
    np.testing.assert_allclose(scaled[:, 0], 0)
    np.testing.assert_allclose(scaled[:, 1], np.array([-1, 0, 1, -1]) * np.sqrt(1.5), rtol=1e-6)


def test_vectors_of_float32_are_not_copied():
    x = RNG.standard_normal((10, 3), np.float32)
    config = base.get_config()
    config.preprocessing.kind = "identity"
    assert np.shares_memory(preprocessed(Parts(x, x[:0]), config), x)


def test_directions_are_those_of_the_singular_value_decomposition():
    x = np.random.default_rng(0).normal(size=(50, 6)) * [5, 4, 3, 2, 1, 0.5] + 7
    project = principal_components(x.astype(np.float32), 3)
    _, _, directions = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    signs = np.sign(np.sum(directions[:3] * project.directions.T, axis=1))
    np.testing.assert_allclose(project.directions.T, directions[:3] * signs[:, None], atol=1e-5)
    np.testing.assert_allclose(
        project(x), (x - x.mean(axis=0)) @ project.directions, rtol=1e-4, atol=1e-4
    )
    assert (project.directions.max(axis=0) == np.abs(project.directions).max(axis=0)).all()
