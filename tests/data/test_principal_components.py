"""Principal components, against a singular value decomposition and by hand."""

import numpy as np

from jaxfed.data.transforms import principal_components


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


def test_points_on_a_line_by_hand():
    x = np.array([[0, 0], [3, 4], [-3, -4]], np.float32) + np.float32(2)
    project = principal_components(x, 1)
    np.testing.assert_allclose(project.directions[:, 0], [0.6, 0.8], atol=1e-6)
    np.testing.assert_allclose(project(x)[:, 0], [0, 5, -5], atol=1e-5)
