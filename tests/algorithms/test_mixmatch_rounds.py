"""Rounds of MixMatch in NumPy: whole batches, and shares so one-sided that chance has no say."""

import jax
import numpy as np
import pytest
from float64_training import cross_entropy, gradient, logits, softmax, weights_of
from small_training import KEY, RATE, double, training_of

from jaxfed.algorithms.mixmatch import mixmatch
from jaxfed.federation.clients import Federation
from jaxfed.training.local.batches import Batches

TEMPERATURE, WEIGHT, EPOCHS = 0.5, 8.0, 2


def clients():
    """Two labels and four other examples; labels only; no label; nothing."""
    rng = np.random.default_rng(0)
    made = []
    for labels, unlabeled in (([0, 2], 4), ([1, 2], 0), ([], 6), ([], 0)):
        y = np.array([*labels, *[-1] * unlabeled], np.int32)
        made.append((rng.standard_normal((len(y), 4)).astype(np.float32), y))
    return made


def trained(w, x, y, rate, weight):
    x = 2 * x.astype(np.float64)
    given, others = y >= 0, y < 0
    for _ in range(EPOCHS):
        guess = softmax(logits(w, x[others])) ** (1 / TEMPERATURE)
        guess /= guess.sum(axis=1, keepdims=True)

        def loss(v, guess=guess):
            value = 0
            if given.any():
                value = value + cross_entropy(v, x[given], y[given])
            if others.any():
                value = value + weight * np.mean((guess - softmax(logits(v, x[others]))) ** 2)
            return value

        w = w - rate * gradient(loss, w)
    return w


@pytest.mark.parametrize("rampup", [2, 0])
@pytest.mark.sample(1)
def test_rounds_are_those_of_the_transcription(rampup):
    held = clients()
    federation = Federation.from_clients(held, test=(held[0][0], np.zeros(6, int)), num_classes=3)
    training = training_of(Batches("paired", 2, EPOCHS, unlabeled_ratio=2), augment=double)
    algorithm = mixmatch(
        training=training,
        temperature=TEMPERATURE,
        alpha=1e-4,
        unlabeled_weight=WEIGHT,
        rampup_rounds=rampup,
    )
    state = algorithm.init(KEY, federation)
    w = weights_of(state.model)
    for number in range(3):
        weight = WEIGHT * min(1, (1 + number) / rampup) if rampup else WEIGHT
        models = [trained(w, x, y, RATE / (1 + number), weight) for x, y in held[:3]]
        w = np.average(models, axis=0, weights=[len(y) for _, y in held[:3]])
        state, _ = algorithm.round(state, federation.cohort(), jax.random.fold_in(KEY, number))
        np.testing.assert_allclose(weights_of(state.model), w, rtol=1e-4, atol=2e-5)
