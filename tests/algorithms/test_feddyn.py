"""FedDyn against its equations."""

from functools import cache

import jax
import numpy as np
from flax import nnx
from float64_training import cross_entropy, gradient, weights_of
from small_round_checks import check_rounds
from small_training import RATE, federation_of, rounds_of, training_of

from jaxfed.algorithms.feddyn import feddyn
from jaxfed.training import aggregate
from jaxfed.training.local.batches import Batches

ALPHA = 0.3
WHOLE = Batches("joint", size=64, epochs=3)  # every batch is all that a client has: no randomness


@cache
def made():
    """The method, compiled once for several tests of clients of at most nine examples."""
    training = training_of(WHOLE, weighting=aggregate.uniformly, clients_multiple=3)
    return feddyn(training=training, alpha=ALPHA)


def test_three_rounds_are_the_equations(tmp_path):
    """Clients of 5, 9 and 7 examples, of whom two take part in a round, in plain gradient steps."""
    sizes, cohorts = [5, 9, 7], [[0, 1], [1, 2], [0, 2]]
    federation, algorithm = federation_of(sizes), made()
    check_rounds(algorithm, federation, [None] * 3, tmp_path)
    states = rounds_of(algorithm, federation, 3, cohorts)
    w = weights_of(states[0].model)
    g, h = np.zeros((3, len(w))), 0
    for number, cohort in enumerate(cohorts):
        rate, ends = RATE / (1 + number), []
        for client in cohort:
            points, v = federation.points(client), w
            x, y = federation.x[points].astype(np.float64), federation.y[points]
            for _ in range(WHOLE.epochs):
                slope = gradient(lambda u, x=x, y=y: cross_entropy(u, x, y), v)
                v = v - rate * (slope - g[client] + ALPHA * (v - w))
            g[client] -= ALPHA * (v - w)
            ends.append(v)
        h = h - ALPHA / len(sizes) * (sum(ends) - 2 * w)
        w = np.mean(ends, axis=0) - h / ALPHA
        state = states[number + 1]
        np.testing.assert_allclose(weights_of(state.model), w, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(weights_of(state.control), h, rtol=2e-4, atol=2e-5)


def test_it_sends_what_fedavg_sends():
    federation, algorithm = federation_of([6, 9]), made()
    state = algorithm.init(jax.random.key(0), federation)
    _, metrics = algorithm.round(state, federation.cohort(), jax.random.key(1))
    num_bytes = 2 * sum(4 * leaf.size for leaf in jax.tree.leaves(state.model))
    assert metrics["communication"]["upload"] == {"parameters": num_bytes}
    assert metrics["communication"]["download"] == {"parameters": num_bytes}


def test_a_round_of_nobody_changes_nothing():
    """The server's own step waits for clients, or h / alpha would be taken off again and again."""
    federation = federation_of([6, 9, 0])
    states = rounds_of(made(), federation, 2, [[0], [2]])
    assert any(np.any(np.abs(leaf) > 0) for leaf in jax.tree.leaves(states[1].control))
    for before, after in zip(
        *map(jax.tree.leaves, (states[1].model, states[2].model)), strict=True
    ):
        np.testing.assert_array_equal(before, after)


def test_statistics_of_batchnorm_stay_out_of_it():
    federation = federation_of([6, 6])
    training = training_of(WHOLE, batch_norm=True)
    state = feddyn(training=training).init(jax.random.key(0), federation)
    for kept in (state.control, state.clients):
        assert not jax.tree.leaves(nnx.filter_state(kept, nnx.BatchStat))
