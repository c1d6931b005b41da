"""How many labels one example changes: bounds against binomials, an estimate against what is known."""

import numpy as np
import pytest
from scipy import stats

from jaxfed.privacy import label_sensitivity as sensitivity


@pytest.mark.parametrize("num_public", [1, 10, 170, 10_000, 50_000])
@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-3, 1e-6])
def test_the_bound_is_a_quantile_of_the_binomial(num_public, delta):
    """Never below it, and of many examples hardly above."""
    for rate in (0.0, 1e-5, 1e-3, 0.03, 0.3, 0.7, 1.0):
        bound = sensitivity.stability_bound(num_public, rate, delta)
        quantile = stats.binom.isf(delta, num_public, rate)
        assert quantile <= bound <= num_public
        slack = stats.norm.isf(delta) ** 2 + 2
        assert bound <= quantile + slack


PUBLIC = np.linspace(0, 1, 101)


def nearest(x, y):
    """1-nearest neighbor on a line; ties to the earlier example."""
    return y[np.abs(PUBLIC[:, None] - x[:, 0]).argmin(axis=1)]


def test_the_estimate_replaces_by_spare_examples():
    x, y = np.array([[0.1], [0.5], [0.91]]), np.array([0, 1, 0])
    spare = np.full((3, 1), 0.5), np.ones(3, int)
    found = sensitivity.estimate(nearest, x, y, spare, seed=0)
    replaced = []
    for i in range(3):
        own, labels = x.copy(), y.copy()
        own[i], labels[i] = 0.5, 1
        replaced.append(np.sum(nearest(own, labels) != nearest(x, y)))
    assert sorted(found) == sorted(replaced)
    assert 0 in found  # the example itself in its place
    more = sensitivity.estimate(nearest, x, y, (np.full((7, 1), 0.5), np.ones(7, int)), seed=1)
    assert set(more) == set(replaced)
    assert x.tolist() == [[0.1], [0.5], [0.91]]  # nobody's data are changed
