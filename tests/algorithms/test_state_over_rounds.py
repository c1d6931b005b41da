"""SCAFFOLD, FedDyn and FedSem, which keep state, in NumPy and float64, over rounds of two of three clients.

State starts at 0 or absent, so that a first round cannot tell a term from its absence, nor a second one
what a client keeps while it is away.
"""

from functools import cache

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from float64_training import cross_entropy, gradient, logits, softmax, weights_of
from small_round_checks import check_rounds
from small_training import RATE, federation_of, rounds_of, training_of

from jaxfed.algorithms.feddyn import feddyn
from jaxfed.algorithms.fedsem import fedsem
from jaxfed.algorithms.scaffold import scaffold
from jaxfed.training import aggregate
from jaxfed.training.local.batches import Batches
from jaxfed.training.round.round import server_optimizer

SIZES = [5, 9, 7]
COHORTS = [[0, 1], [1, 2], [0, 2], [1, 0]]
STEPS = 3
WHOLE = Batches("joint", size=16, epochs=STEPS)  # every batch is all that a client has: no chance
SERVER_RATE, ALPHA = 0.7, 0.3
FEDERATION = federation_of(SIZES)


def gradient_of(w, client):
    points = FEDERATION.points(client)
    x, y = FEDERATION.x[points].astype(np.float64), FEDERATION.y[points]
    return gradient(lambda v: cross_entropy(v, x, y), w)


def training(**changes):
    return training_of(WHOLE, weighting=aggregate.uniformly, **changes)


def test_scaffold():
    made = scaffold(training=training(aggregate=server_optimizer(optax.sgd(SERVER_RATE))))
    states = rounds_of(made, FEDERATION, len(COHORTS), COHORTS)
    w = weights_of(states[0].model)
    c, own = np.zeros_like(w), np.zeros((len(SIZES), len(w)))
    for number, cohort in enumerate(COHORTS):
        rate, ends, renewed = RATE / (1 + number), [], own.copy()
        for k in cohort:
            v = w
            for _ in range(STEPS):
                v = v - rate * (gradient_of(v, k) + c - own[k])
            renewed[k] = own[k] - c + (w - v) / (STEPS * rate)
            ends.append(v)
        w = w + SERVER_RATE * (np.mean(ends, axis=0) - w)
        c, own = c + (renewed - own).sum(axis=0) / len(SIZES), renewed
        state = states[number + 1]
        found = (state.model, state.control, state.clients)
        for ours, theirs in zip(map(weights_of, found), (w, c, own), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-4)


@cache
def dynamic():
    """FedDyn, compiled once for several tests of clients of at most nine examples."""
    return feddyn(training=training(clients_multiple=3), alpha=ALPHA)


def test_feddyn(tmp_path):
    check_rounds(dynamic(), FEDERATION, [None] * 3, tmp_path)
    states = rounds_of(dynamic(), FEDERATION, len(COHORTS), COHORTS, sent := [])
    assert sent[0]["upload"] == sent[0]["download"] == {"parameters": 2 * 67 * 4}
    w = weights_of(states[0].model)
    g, h = np.zeros((3, len(w))), 0
    for number, cohort in enumerate(COHORTS):
        ends = []
        for k in cohort:
            v = w
            for _ in range(STEPS):
                slope = gradient_of(v, k) - g[k] + ALPHA * (v - w)
                v = v - RATE / (1 + number) * slope
            g[k] -= ALPHA * (v - w)
            ends.append(v)
        h = h - ALPHA / len(SIZES) * (sum(ends) - 2 * w)
        w = np.mean(ends, axis=0) - h / ALPHA
        state = states[number + 1]
        np.testing.assert_allclose(weights_of(state.model), w, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(weights_of(state.control), h, rtol=2e-4, atol=2e-5)


def test_a_round_of_nobody_changes_nothing_in_feddyn():
    """The server's own step waits for clients, or h / alpha would be taken off again and again."""
    states = rounds_of(dynamic(), federation_of([6, 9, 0]), 2, [[0], [2]])
    assert np.any(weights_of(states[1].control))
    np.testing.assert_array_equal(weights_of(states[1].model), weights_of(states[2].model))


def test_statistics_of_batchnorm_stay_out_of_feddyn():
    state = feddyn(training=training(batch_norm=True)).init(jax.random.key(0), FEDERATION)
    for kept in (state.control, state.clients):
        assert not jax.tree.leaves(nnx.filter_state(kept, nnx.BatchStat))


@pytest.mark.slow
def test_the_teacher_of_fedsem():
    """One round on the labels alone; its model labels and weighs the rest in all rounds after it."""
    federation = federation_of(SIZES, 3)
    made = fedsem(training=training(labeled_batches=WHOLE, labeled_only_rounds=1))
    states = rounds_of(made, federation, len(COHORTS), COHORTS)
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
            v, rate = w, RATE / (number + (teacher is None))
            for _ in range(STEPS):
                slope = gradient(
                    lambda u, x=x, y=y, weight=weight: cross_entropy(u, x, y * weight[:, None]), v
                )
                v = v - rate * slope
            ends.append(v)
        w = np.mean(ends, axis=0)
        teacher = w if teacher is None else teacher
        expected.append(w)
    for state, w in zip(states[1:], expected, strict=True):
        np.testing.assert_allclose(weights_of(state.model), w, rtol=2e-4, atol=2e-5)
