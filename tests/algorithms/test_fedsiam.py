"""FedSiam: its rounds transcribed to NumPy; loss, moving average and ramp-up by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from float64_training import affine, softmax
from small_training import (
    KEY,
    RATE,
    assert_close,
    assert_same,
    federation_of,
    rounds_of,
    training_of,
)

from jaxfed.algorithms.fedsiam import fedsiam
from jaxfed.models.mlp import mlp
from jaxfed.training.aggregate import uniformly
from jaxfed.training.local.batches import Batches
from jaxfed.training.mean_teacher import ramp_up, twins

SMALL = Batches("paired", 4, 2)


def test_the_target_follows_and_its_memory_ramps_up():
    """One step a round, n = r: alpha is 1 - 1 / (n + 1), at most 0.7; decay is not the target's."""
    federation = federation_of([16])

    def decayed(rate):
        return optax.chain(optax.add_decayed_weights(0.1), optax.sgd(rate))

    training = training_of(Batches("joint", 16, 1), optimizer=decayed)
    states = rounds_of(fedsiam(training=training, average=0.7), federation, 4)
    target = states[0].model["target"]
    for alpha, state in zip([1 / 2, 2 / 3, 0.7, 0.7], states[1:], strict=True):
        target = jax.tree.map(
            lambda t, s, a=alpha: a * t + (1 - a) * s, target, state.model["online"]
        )
        assert_close(state.model["target"], target)


def test_ramp_up():
    """Four rounds: exp(-5 (1 - r / 4)^2) in rounds 1, 2, 4 and 9."""
    values = [float(ramp_up(jnp.float32(r), 4)) for r in (1, 2, 4, 9)]
    np.testing.assert_allclose(values, [np.exp(-45 / 16), np.exp(-5 / 4), 1, 1], rtol=1e-6)
    assert float(ramp_up(jnp.float32(1), 0)) == 1


LINEAR = mlp((4,), 3, hidden=())


def client_in_numpy(online, target, x, y, *, beta, over, first_step, rate, average):
    """Two steps on all examples; squared differences of probabilities."""
    x, is_labeled = np.hstack([x, np.ones((len(x), 1))]), y >= 0
    divisor = len(x) if over == "batch" else is_labeled.sum()
    for step in (first_step, first_step + 1):
        p, q = softmax(x @ online), softmax(x @ target)
        residual = np.where(is_labeled[:, None], p - np.eye(3)[y], 0)
        slope = p * ((p - q) - np.sum(p * (p - q), axis=1, keepdims=True))  # of softmax
        gradient = x.T @ residual / divisor + beta * x.T @ slope * 2 / 3 / len(x)
        online = online - rate * gradient
        alpha = min(1 - 1 / (step + 1), average)
        target = alpha * target + (1 - alpha) * online
    return online, target


@pytest.mark.parametrize("over", ["labeled", "batch"])
@pytest.mark.sample(1)
def test_rounds_are_those_of_the_transcription(over):
    """Two clients, rounds of two steps, R = 3; steps count from 1 and rounds from 1."""
    federation = federation_of([8, 8], 3)
    training = training_of(Batches("joint", 8, 2), model=LINEAR, weighting=uniformly)
    settings = {"consistency_weight": 20.0, "rampup_rounds": 3, "average": 0.72}
    algorithm = fedsiam(training=training, supervised_over=over, **settings)
    states, cohort = rounds_of(algorithm, federation, 4), federation.cohort()
    online, target = (affine(states[0].model[name]) for name in ("online", "target"))
    for number, state in enumerate(states[1:]):
        networks = [
            client_in_numpy(
                online,
                target,
                np.float64(x),
                y,
                beta=20 * np.exp(-5 * (1 - min(number + 1, 3) / 3) ** 2),
                over=over,
                first_step=2 * number + 1,
                rate=RATE / (1 + number),
                average=0.72,
            )
            for x, y in zip(cohort.x, np.asarray(cohort.y), strict=True)
        ]
        online, target = np.mean(networks, axis=0)
        for name, expected in (("online", online), ("target", target)):
            np.testing.assert_allclose(affine(state.model[name]), expected, rtol=1e-4, atol=1e-5)


def test_a_given_model_is_both_networks():
    given = LINEAR.init(jax.random.key(7))
    training = training_of(SMALL, model=LINEAR, initial_model=given)
    state = fedsiam(training=training).init(KEY, federation_of([8]))
    assert_same(state.model, twins(given))
