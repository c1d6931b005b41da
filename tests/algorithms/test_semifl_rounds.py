"""Rounds of SemiFL in NumPy with its mixtures: even shares, and every way in which partners may be drawn."""

from functools import cache
from itertools import product

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from float64_training import (
    cross_entropy,
    gradient,
    logits,
    softmax,
    the_one_that_fits,
    weights_of,
)
from small_round_checks import check_rounds
from small_training import KEY, RATE, double, shifted, training_of

from jaxfed.algorithms.semifl import semifl
from jaxfed.federation.clients import Federation
from jaxfed.training.local.batches import Batches
from jaxfed.training.server import aggregate
from jaxfed.training.server.server_state import with_statistics

THRESHOLD, MIX_WEIGHT, MAX_NORM = 0.6, 0.8, 0.4


def clients_and_server():
    """Two that are sure of all, one sure of one of two, one of nothing, and an empty one."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((20, 4)).astype(np.float32)
    unknown = np.full(2, -1)
    near = np.full((2, 4), -0.5, np.float32)
    held = [np.stack([20 * x[4], -20 * x[1]]), np.stack([20 * x[1], 20 * x[6]]), near, x[:0]]
    y = (x @ rng.standard_normal((4, 3))).argmax(axis=1)
    return held, Federation.from_clients(
        [(own, unknown[: len(own)]) for own in held],
        server=(x[8:14], y[8:14]),
        test=(x[14:], y[14:]),
        num_classes=3,
    )


def step(w, loss, rate, norms):
    slope = gradient(loss, w)
    norms.append(np.linalg.norm(slope))
    return w - rate * slope * min(1, MAX_NORM / norms[-1])


def outcomes(w, x, rate, norms):
    """The model after one batch, for each draw of partners with replacement; none without a sure example."""
    x = x.astype(np.float64)
    p = softmax(logits(w, x + 0.5))
    sure, label = np.flatnonzero(p.max(axis=1) >= THRESHOLD), p.argmax(axis=1)
    if not len(sure):
        return []
    found = []
    for partners in product(range(len(x)), repeat=len(sure)):
        others = list(partners)
        mixed = (x[sure] + x[others]) / 2 + 0.5

        def loss(v, mixed=mixed, others=others):
            fix = cross_entropy(v, 2 * x[sure], label[sure])
            mix = cross_entropy(v, mixed, label[sure]) + cross_entropy(v, mixed, label[others])
            return fix + MIX_WEIGHT * mix / 2

        found.append(step(w, loss, rate, norms))
    return found


@cache
def made():
    """Clients' examples, their federation and the method, which is compiled once."""
    held, federation = clients_and_server()
    training = training_of(
        Batches("joint", 2, 1),
        augment=shifted,
        strong_augment=double,
        server_examples=federation.server_examples,
        server_batches=Batches("joint", 6, 1),
        weighting=aggregate.uniformly,
        aggregate=aggregate.server_optimizer(optax.sgd(1.0, momentum=0.5)),
    )
    algorithm = semifl(
        training=training,
        threshold=THRESHOLD,
        mix_weight=MIX_WEIGHT,
        mix_alpha=1e9,
        max_norm=MAX_NORM,
    )
    return held, federation, algorithm


def test_rounds_are_compiled_once_and_resumed_with_the_same_bits(tmp_path):
    _, federation, algorithm = made()
    check_rounds(algorithm, federation, [None] * 3, tmp_path)


def test_rounds_are_those_of_the_transcription():
    held, federation, algorithm = made()
    server_x, server_y = federation.server_examples
    state = algorithm.init(KEY, federation)
    w, velocity = weights_of(state.model), 0
    numbers, norms = [], []
    for number in range(2):
        rate = RATE / (1 + number)
        state, metrics = algorithm.round(
            state, federation.cohort(), jax.random.fold_in(KEY, number)
        )
        w = step(
            w,
            lambda v: cross_entropy(v, server_x.astype(np.float64) + 0.5, server_y),
            rate,
            norms,
        )
        sure = [
            np.mean(softmax(logits(w, x.astype(np.float64) + 0.5)).max(axis=1) >= THRESHOLD)
            for x in held[:3]
        ]
        assert float(metrics["sure"]) == pytest.approx(np.mean([share for share in sure if share]))
        each = [found for x in held if (found := outcomes(w, x, rate, norms))]
        numbers.append(len(each))
        candidates = []
        for models in product(*each):
            moved = 0.5 * velocity + (w - np.mean(models, axis=0))
            candidates.append((w - moved, moved))
        w, velocity = the_one_that_fits(candidates, (weights_of(state.model),))
        assert metrics["clients"] == len(each)
        sent = metrics["communication"]
        assert sent["upload_bytes"] == len(each) * 4 * w.size
        assert sent["download_bytes"] == len(held) * 4 * w.size
    assert numbers == [2, 2]
    assert max(norms) > MAX_NORM > min(norms)


@pytest.mark.slow
def test_clients_label_with_their_own_statistics():
    """At rate 0 nothing moves but running statistics, which clients keep."""
    held, federation = clients_and_server()
    training = training_of(
        Batches("joint", 2, 1),
        batch_norm=True,
        batch_statistics="local",
        learning_rate=lambda count: 0.0,
        strong_augment=double,
        server_examples=federation.server_examples,
        server_batches=Batches("joint", 6, 1),
        weighting=aggregate.uniformly,
    )
    algorithm = semifl(training=training, threshold=0.5)
    state = algorithm.init(KEY, federation)

    def sure_by(state, statistics):
        shares = []
        for k, x in enumerate(held[:3]):
            own = with_statistics(state.model, statistics[k])
            p = jax.nn.softmax(training.model.apply(own, x)).max(axis=1)
            shares.append(np.mean(np.asarray(p) >= 0.5))
        return np.mean([share for share in shares if share])

    by_server = []
    for number in range(3):
        kept = [jax.tree.map(lambda leaf, k=k: leaf[k], state.statistics) for k in range(3)]
        expected = sure_by(state, kept)
        of_server = nnx.filter_state(state.model, nnx.BatchStat)
        by_server.append(sure_by(state, [of_server] * 3) == expected)
        state, metrics = algorithm.round(
            state, federation.cohort(), jax.random.fold_in(KEY, number)
        )
        assert float(metrics["sure"]) == pytest.approx(expected)
    assert not all(by_server)
