"""A round over a network: the simulation's numbers, from parties that hold their own data alone."""

import jax
import numpy as np
import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.testing.method_checks import SEED, arranged, trains
from network_in_process import Network, as_numpy

pytestmark = pytest.mark.usefixtures("as_users_compile")
SETTINGS = {"semifl": ("federation.labels_at=server",)}


def both(name, settings=(), rounds=3, **network):
    config, federation, algorithm = arranged(name, settings=settings)
    key = jax.random.key(SEED)
    state = algorithm.init(jax.random.fold_in(key, 0), federation)
    there = Network(config, name, federation, seed=SEED, **network)
    far = there.algorithm.init(jax.random.fold_in(key, 0), there.federation)
    lines = []
    for number in range(1, rounds + 1):
        cohort = federation.cohort([0, 2, 3, 5])
        own_key = jax.random.fold_in(key, number)
        state, metrics = algorithm.round(state, cohort, own_key)
        far, metrics_there = there.algorithm.round(
            far, there.federation.cohort([0, 2, 3, 5]), own_key
        )
        lines.append((metrics, metrics_there))
    return state, far, lines, there


@pytest.mark.parametrize("name", list(filter(trains, ALGORITHMS)))
def test_methods(name):
    state, far, lines, there = both(name, SETTINGS.get(name, ()))
    a, b = as_numpy(state.model), as_numpy(far.model)
    worst = max(np.abs(x - y).max() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))
    print(name, worst, lines[-1][0].keys() ^ lines[-1][1].keys())
    assert worst < 1e-6
    assert {**lines[-1][0]} == {**lines[-1][1]}
