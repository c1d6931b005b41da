"""Methods that keep state, in NumPy and float64, over four rounds of two of three clients each.

State starts at 0 or absent, so that a first round cannot tell a term from its absence, nor a second one
what a client keeps while it is away. FedDyn, FedRGD, FedMatch, FedSiam, SemiFL, ProtoFSSL and FedCT have
their rounds in their own files.
"""

from functools import partial

import numpy as np
import optax
import pytest
from float64_training import cross_entropy, gradient, logits, softmax, weights_of
from small_training import RATE, federation_of, rounds_of, training_of

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fedsem import fedsem
from jaxfed.algorithms.scaffold import scaffold
from jaxfed.training import aggregate
from jaxfed.training.aggregate import adaptive
from jaxfed.training.local.batches import Batches
from jaxfed.training.round.round import server_optimizer

SIZES = [5, 9, 7]
COHORTS = [[0, 1], [1, 2], [0, 2], [1, 0]]
STEPS = 3
WHOLE = Batches("joint", size=16, epochs=STEPS)  # every batch is all that a client has: no chance
SERVER_RATE = 0.7
FEDERATION = federation_of(SIZES)


def rate_of(number):
    return RATE / (1 + number)


def gradient_of(w, client):
    points = FEDERATION.points(client)
    x, y = FEDERATION.x[points].astype(np.float64), FEDERATION.y[points]
    return gradient(lambda v: cross_entropy(v, x, y), w)


def descended(w, client, rate, correction=0.0):
    v = w
    for _ in range(STEPS):
        v = v - rate * (gradient_of(v, client) + correction)
    return v


def played(make, **changes):
    """The states of the method's rounds."""
    given = {"aggregate": server_optimizer(optax.sgd(SERVER_RATE))} | changes
    training = training_of(WHOLE, weighting=aggregate.uniformly, **given)
    return rounds_of(make(training=training), FEDERATION, len(COHORTS), COHORTS)


def assert_follows(states, expected):
    for state, w in zip(states[1:], expected, strict=True):
        np.testing.assert_allclose(weights_of(state.model), w, rtol=2e-4, atol=2e-5)


def test_scaffold():
    states = played(scaffold)
    w = weights_of(states[0].model)
    c, own = np.zeros_like(w), np.zeros((len(SIZES), len(w)))
    for number, cohort in enumerate(COHORTS):
        rate, ends, renewed = rate_of(number), [], own.copy()
        for k in cohort:
            v = descended(w, k, rate, c - own[k])
            renewed[k] = own[k] - c + (w - v) / (STEPS * rate)
            ends.append(v)
        w = w + SERVER_RATE * (np.mean(ends, axis=0) - w)
        c, own = c + (renewed - own).sum(axis=0) / len(SIZES), renewed
        state = states[number + 1]
        found = (state.model, state.control, state.clients)
        for ours, theirs in zip(map(weights_of, found), (w, c, own), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-4)


def moments(name, d, m, v):
    """Direction and moments of FedAvgM, or of Algorithm 2 of Reddi et al. with tau = 0.01."""
    if name == "momentum":
        m = 0.9 * m + d
        return m, m, v
    m, square = 0.9 * m + 0.1 * d, d**2
    v = {
        "adagrad": v + square,
        "yogi": v - 0.01 * square * np.sign(v - square),
        "adam": 0.99 * v + 0.01 * square,
    }[name]
    return m / (np.sqrt(v) + 0.01), m, v


@pytest.mark.parametrize("name", ["momentum", "adagrad", "yogi", "adam"])
@pytest.mark.sample(1)
def test_server_optimizers(name):
    rate = SERVER_RATE if name == "momentum" else 0.07
    optimizer = (
        optax.sgd(rate, momentum=0.9) if name == "momentum" else adaptive(name, rate, tau=0.01)
    )
    states = played(fedavg, aggregate=server_optimizer(optimizer))
    w, expected = weights_of(states[0].model), []
    m, v = np.zeros_like(w), np.full_like(w, 0.01**2)
    for number, cohort in enumerate(COHORTS):
        change = np.mean([descended(w, k, rate_of(number)) for k in cohort], axis=0) - w
        direction, m, v = moments(name, change, m, v)
        w = w + rate * direction
        expected.append(w)
    assert_follows(states, expected)


def momentum_step(slope, state):
    velocity = 0.9 * state + slope
    return velocity, velocity


def rmsprop_step(slope, state):
    square = 0.9 * state + 0.1 * slope**2
    return slope / np.sqrt(square + 1e-8), square


@pytest.mark.parametrize("kind", ["fresh", "kept"])
@pytest.mark.parametrize(
    ("optimizer", "step", "scale"),
    [
        (partial(optax.sgd, momentum=0.9), momentum_step, 1),
        (lambda rate: optax.rmsprop(0.05 * rate), rmsprop_step, 0.05),
    ],
    ids=["momentum", "rmsprop"],
)
@pytest.mark.sample(1)
def test_client_optimizers(optimizer, step, scale, kind):
    states = played(fedavg, optimizer=optimizer, client_optimizer=kind)
    w, kept, expected = weights_of(states[0].model), {}, []
    for number, cohort in enumerate(COHORTS):
        ends = []
        for k in cohort:
            v, state = w, kept.get(k, 0.0) if kind == "kept" else 0.0
            for _ in range(STEPS):
                direction, state = step(gradient_of(v, k), state)
                v = v - scale * rate_of(number) * direction
            kept[k] = state
            ends.append(v)
        w = w + SERVER_RATE * (np.mean(ends, axis=0) - w)
        expected.append(w)
    assert_follows(states, expected)


@pytest.mark.slow
def test_the_teacher_of_fedsem():
    """One round on the labels alone; its model labels and weighs the rest in all rounds after it."""
    federation = federation_of(SIZES, 3)
    training = training_of(
        WHOLE, labeled_batches=WHOLE, weighting=aggregate.uniformly, labeled_only_rounds=1
    )
    states = rounds_of(fedsem(training=training), federation, len(COHORTS), COHORTS)
    w, teacher, expected = weights_of(states[0].model), None, []
    for number, cohort in enumerate(COHORTS):
        ends = []
        for k in cohort:
            labeled, others = federation.partition.labeled[k], federation.partition.unlabeled[k]
            x = federation.x[labeled].astype(np.float64)
            y, weight = np.eye(3)[federation.y[labeled]], np.ones(len(labeled))
            if teacher is not None:
                more = federation.x[others].astype(np.float64)
                p = softmax(logits(teacher, more))
                x = np.concatenate([x, more])
                y = np.concatenate([y, np.eye(3)[p.argmax(axis=1)]])
                sure = 1 + np.sum(p * np.log(p), axis=1) / np.log(3)
                weight = np.concatenate([weight, sure])
            v, rate = w, rate_of(number if teacher is None else number - 1)
            for _ in range(STEPS):
                slope = gradient(
                    lambda u, x=x, y=y, weight=weight: cross_entropy(u, x, y * weight[:, None]), v
                )
                v = v - rate * slope
            ends.append(v)
        w = np.mean(ends, axis=0)
        teacher = w if teacher is None else teacher
        expected.append(w)
    assert_follows(states, expected)
