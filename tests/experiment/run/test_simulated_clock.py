"""`simulate` with a clock: what it refuses before anything runs, as a config does."""

import numpy as np
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
