"""FedDB against its equations, in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import cross_entropy, gradient, logits, softmax, weights_of
from small_training import RATE, double, federation_with, rounds_of, training_of

from jaxfed.algorithms.feddb import aggregation_weights, feddb
from jaxfed.training.local.batches import Batches

TAU, WEIGHT = 0.5, 0.8
WHOLE = Batches("joint", size=64, epochs=3)  # every batch is all that a client has


def by_sgd(q):
    """SGD as PyTorch takes its first step, from an optimizer that is new each time."""
    number, classes = q.shape
    a = np.full(number, 1 / number)
    for _ in range(100):
        slope = np.zeros(number)
        for k in range(number):
            for c in range(classes):
                slope[k] += 2 / classes * (sum(a * q[:, c]) - 1 / classes) * q[k, c]
        slope += 0.9 * a
        momentum = slope
        moved = a - (slope + 0.9 * momentum)
        a = np.exp(moved) / np.exp(moved).sum()
    return a


def debiased_by_hand(p, q):
    raised = np.array([row / q for row in p])
    return np.array([row / row.sum() for row in raised])


@pytest.mark.parametrize("number", [2, 7])
def test_aggregation_weights_by_a_loop(number):
    q = np.random.default_rng(number).dirichlet(np.full(3, 0.3), number)
    found = aggregation_weights(jnp.asarray(q, jnp.float32))
    np.testing.assert_allclose(found, by_sgd(q), rtol=1e-5)
    assert np.ptp(np.asarray(found)) > 1e-3


def test_clients_outside_of_the_mean_change_no_weight():
    q = np.random.default_rng(3).dirichlet(np.ones(3), 4).astype(np.float32)
    padded = np.insert(q, 2, 0, axis=0)
    found = np.asarray(aggregation_weights(jnp.asarray(padded)))
    np.testing.assert_allclose(np.delete(found, 2), by_sgd(q), rtol=1e-5)
    assert found[2] == 0
    np.testing.assert_array_equal(aggregation_weights(jnp.zeros((3, 2))), np.zeros(3))


def test_two_rounds_are_the_equations():
    """Clients with both kinds of examples, with one kind, and with none."""
    held, federation = federation_with([([0, 1], 5), ([2, 0, 1], 0), ([], 6), ([], 0)])
    training = training_of(WHOLE, strong_augment=double)
    algorithm = feddb(training=training, threshold=TAU, unlabeled_weight=WEIGHT)
    states = rounds_of(algorithm, federation, 2, sent=(sent := []))
    assert sent[0]["upload"] == {"parameters": 4 * 67 * 4, "mean_predictions": 4 * 3 * 4}
    w, relabeled = weights_of(states[0].model), 0
    for number in range(2):
        ends, rows = [], []
        for x, y in held[:3]:
            x, v = x.astype(np.float64), w
            u = x[y < 0] if np.any(y < 0) else x
            p = softmax(logits(w, u))
            own = debiased_by_hand(p, p.mean(axis=0))
            relabeled += np.sum(own.argmax(axis=1) != p.argmax(axis=1))
            sure = own.max(axis=1) >= TAU

            def loss(v, x=x, y=y, u=u, own=own, sure=sure):
                value = cross_entropy(v, x[y >= 0], y[y >= 0]) if np.any(y >= 0) else 0
                if np.any(y < 0) and np.any(sure):
                    label = own[sure].argmax(axis=1)
                    value = value + WEIGHT * sure.mean() * cross_entropy(v, 2 * u[sure], label)
                return value

            for _ in range(WHOLE.epochs):
                v = v - RATE / (1 + number) * gradient(loss, v)
            ends.append(v)
            rows.append(softmax(logits(v, u)).mean(axis=0))
        w = by_sgd(np.array(rows)) @ np.array(ends)
        found = weights_of(states[number + 1].model)
        np.testing.assert_allclose(found, w, rtol=2e-4, atol=2e-5)
    assert relabeled
