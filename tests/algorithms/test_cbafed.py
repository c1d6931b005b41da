"""CBAFed against its equations, in NumPy."""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from float64_training import cross_entropy, gradient, logits, softmax, weights_of
from small_training import KEY, RATE, assert_same, federation_with, rounds_of, training_of

from jaxfed.algorithms.cbafed import cbafed, residual_mean, scaled_shares
from jaxfed.training.local.batches import Batches
from jaxfed.training.round.round import aggregate_of, server_optimizer

BASE, HIGHEST, RARE = 0.5, 0.55, 0.06
WHOLE = Batches("joint", size=64, epochs=3)  # every batch is all that a client has
SETTINGS = {"threshold": BASE, "highest_threshold": HIGHEST, "rare_share": RARE}


def shares_by_hand(counts):
    total = sum(counts)
    return np.array([3 / 10 * (n / total if total else 1 / 3) for n in counts])


def thresholds_by_hand(s):
    mean = sum(s) / 3
    deviation = np.sqrt(sum((value - mean) ** 2 for value in s) / 2)
    return np.array([min(value + BASE - deviation, HIGHEST) for value in s])


def labels_by_hand(p, least, s):
    found, seconds = [], 0
    for row in p:
        best, second = np.argsort(-row)[:2]
        if row[best] > least[best]:
            found.append(best)
        elif s[second] < RARE:
            found.append(second)
            seconds += 1
        else:
            found.append(-1)
    return np.array(found, int), seconds


def test_shares_are_of_all_examples_and_alike_without_any():
    np.testing.assert_allclose(scaled_shares(jnp.array([2.0, 1.0, 1.0, 0.0])), [0.2, 0.1, 0.1, 0])
    np.testing.assert_allclose(scaled_shares(jnp.zeros(20)), np.full(20, 0.1))


def test_four_rounds_are_the_equations():
    """Not all clients take part; every second round ends with the mean with an earlier model."""
    held, federation = federation_with(
        [([0, 1, 1, 1, 1, 0], 0), ([1, 0, 2], 6), ([], 8), ([], 0), ([], 7)]
    )
    cohorts = [[0, 1, 3], [1, 2, 4], [0, 2, 4], [0, 1, 2]]
    algorithm = cbafed(training=training_of(WHOLE), residual_rounds=2, **SETTINGS)
    states = rounds_of(algorithm, federation, len(cohorts), cohorts, sent := [])
    num_bytes = {"parameters": 3 * 67 * 4, "control": 3 * 3 * 4}
    assert sent[0]["upload"] == sent[0]["download"] == num_bytes
    w = earlier = weights_of(states[0].model)
    counts, seconds, kept_out = np.zeros((5, 3)), 0, 0
    for number, cohort in enumerate(cohorts):
        s = shares_by_hand(counts.sum(axis=0))
        least, ends, sizes = thresholds_by_hand(s), [], []
        for client in cohort:
            x, y = held[client][0].astype(np.float64), held[client][1].copy()
            if np.any(y < 0):
                p = softmax(logits(w, x[y < 0]))
                y[y < 0], more = labels_by_hand(p, least, s)
                seconds += more
                kept_out += np.sum(y < 0)
            x, y = x[y >= 0], y[y >= 0]
            counts[client] = np.bincount(y, minlength=3)
            v = w
            for _ in range(WHOLE.epochs if len(y) else 0):
                slope = gradient(lambda u, x=x, y=y: cross_entropy(u, x, y), v)
                v = v - RATE / (1 + number) * slope
            ends.append(v)
            sizes.append(len(y))
        w = np.average(ends, axis=0, weights=sizes)
        if number % 2:
            w = earlier = (w + earlier) / 2
        found = states[number + 1]
        np.testing.assert_allclose(weights_of(found.model), w, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(found.control, counts.sum(axis=0) / 4, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.clients, counts)
    assert seconds
    assert kept_out


def test_the_earlier_model_is_of_the_last_round_on_given_labels_first():
    """A model of one number that grows by 1 in each round; rounds without anyone are counted."""
    aggregate = residual_mean(server_optimizer(optax.sgd(1.0)), every=2, first=3)
    model = nnx.State({"w": nnx.Param(jnp.float32(0))})
    state, found = aggregate.init(model, KEY), []
    for anyone in (1, 1, 1, 1, 1, 0, 0, 1, 1):
        one = nnx.State({"w": nnx.Param(jnp.ones(1))})
        model, state = aggregate.apply(model, one, jnp.array([float(anyone)]), state)
        found.append(float(model["w"][...]))
    assert found == [1, 2, 3, 4, (5 + 3) / 2, 4, 4, 5, (6 + 4) / 2]


def test_a_round_of_nobody_changes_no_model():
    """Even where the mean with the earlier model is due."""
    _, federation = federation_with([([0, 1, 2], 3), ([], 0)])
    algorithm = cbafed(training=training_of(WHOLE), residual_rounds=2)
    states = rounds_of(algorithm, federation, 2, [[0], [1]])
    assert_same(states[1].model, states[2].model)
    assert_same(states[1].control, states[2].control)


def test_without_residual_rounds_the_server_keeps_one_model():
    _, federation = federation_with([([0, 1, 2], 3)])
    algorithm = cbafed(training=training_of(WHOLE), residual_rounds=0)
    assert algorithm.init(KEY, federation).optimizer == aggregate_of(training_of(WHOLE)).init(
        algorithm.init(KEY, federation).model, KEY
    )
