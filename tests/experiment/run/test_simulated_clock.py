"""`simulate` with a clock: what it refuses before anything runs, as a config does."""

import numpy as np
import pytest
from flax import nnx

import jaxfed

TRAINING = jaxfed.Training(jaxfed.from_flax(lambda rngs: nnx.Linear(2, 2, rngs=rngs), (2,)))
SECOND = {"seconds_per_example": 1.0}


def federation():
    """Four clients of 2 to 5 examples: 2 to 5 seconds."""
    rng = np.random.default_rng(0)
    sizes = range(2, 6)
    return jaxfed.Federation.from_clients(
        [(rng.normal(size=(n, 2)).astype(np.float32), np.arange(n) % 2) for n in sizes]
    )


def test_a_guarantee_that_counts_on_draws_allows_a_clock_that_only_counts():
    method = jaxfed.algorithms.dp_fedavg(training=TRAINING)
    options = {"rounds": 2, "cohort_size": 2}
    plain = jaxfed.simulate(method, federation(), **options)
    timed = jaxfed.simulate(method, federation(), clock=jaxfed.Clock(**SECOND), **options)
    for before, after in zip(plain.records, timed.records, strict=True):
        assert after["simulated_seconds"] > 0
        assert after["epsilon"] == before["epsilon"]


@pytest.mark.parametrize("name", ["xclp", "client_knn", "per_client_lp"])
def test_a_lost_client_costs_no_other_its_labels(name):
    """Client 1 is too slow; the others have the labels of a federation without it."""
    rng = np.random.default_rng(1)
    clients = [
        (rng.normal(size=(n, 2)).astype(np.float32), [0, 1, *[-1] * (n - 2)]) for n in (6, 9, 5, 6)
    ]
    method = getattr(jaxfed.algorithms, name)(num_classes=2)
    all_of_them = jaxfed.Federation.from_clients(clients)
    clock = jaxfed.Clock(**SECOND, over_selection=1.3)
    found = jaxfed.simulate(method, all_of_them, cohort_size=3, clock=clock).state.label
    without = jaxfed.Federation.from_clients([clients[j] for j in (0, 2, 3)])
    expected = jaxfed.simulate(method, without).state.label
    np.testing.assert_array_equal(found[[0, 2, 3], :6], expected[:, :6])
    assert (expected[2] >= 0).all()
    assert (found[1] == -1).all()
