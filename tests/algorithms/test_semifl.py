"""SemiFL: its loss transcribed to NumPy, labels, the confident set, batches, and whole rounds.

In rounds shares of mixtures are even, and every way in which partners may be drawn is tried.
"""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from float64_training import (
    affine,
    cross_entropy,
    gradient,
    log_softmax,
    logits,
    softmax,
    the_one_that_fits,
    weights_of,
)
from scipy import stats
from small_round_checks import check_rounds
from small_training import KEY, RATE, client_of, double, shifted, training_of

from jaxfed.algorithms.semifl import labeled, semifl, semifl_loss
from jaxfed.federation.clients import Federation
from jaxfed.models.mlp import mlp
from jaxfed.training import aggregate
from jaxfed.training.local.batches import Batches, ClientData, _beside_all
from jaxfed.training.local.losses import Batch
from jaxfed.training.round.round import server_optimizer
from jaxfed.training.specification import Training

LINEAR = mlp((4,), 3, hidden=())


def weakly(augment):
    return Training(LINEAR).with_local(augment=augment)


def with_ones(x):
    return np.hstack([x, np.ones((len(x), 1))])


@pytest.mark.slow
def test_the_loss_of_a_batch():
    """Three of D_fix, the third only fills the batch, beside three of D_mix."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 4)), np.array([0, 2, 1, 1, 0, 2])
    used = np.array([True, True, False] * 2)
    state = LINEAR.init(KEY)
    training = Training(LINEAR).with_local(augment=lambda key, x: x + 1, strong_augment=double)
    loss = semifl_loss(training, mix_weight=0.7, mix_alpha=0.75)
    batch = Batch(
        jnp.asarray(x, jnp.float32), jnp.asarray(y), *map(jnp.asarray, (used, used, ~used))
    )
    value, _ = loss(state, state, batch, KEY)
    share = float(jax.random.beta(jax.random.split(KEY, 4)[2], 0.75, 0.75))
    w = affine(state)
    fixed = -log_softmax(with_ones(2 * x[:2]) @ w)[[0, 1], y[:2]].mean()
    mixed = log_softmax(with_ones(1 + share * x[:2] + (1 - share) * x[3:5]) @ w)
    both = share * mixed[[0, 1], y[:2]] + (1 - share) * mixed[[0, 1], y[3:5]]
    assert float(value) == pytest.approx(fixed - 0.7 * both.mean(), rel=1e-5)


def test_labels_and_the_confident_set():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((7, 4)).astype(np.float32)
    mask = np.arange(7) < 6
    nothing = jnp.zeros(7, jnp.int32)
    data = ClientData(jnp.asarray(x), nothing, jnp.zeros(7), nothing > 0, jnp.asarray(mask))
    state = LINEAR.init(KEY)
    found, is_sure = labeled(client_of(weakly(double), state, data), KEY, 0.6)
    probability = np.exp(log_softmax(with_ones(2 * x) @ affine(state)))
    expected = mask & (probability.max(axis=1) >= 0.6)
    assert 0 < expected.sum() < 6
    np.testing.assert_array_equal(is_sure, expected)
    np.testing.assert_array_equal(found.weight, expected)
    np.testing.assert_array_equal(found.label, np.where(mask, probability.argmax(axis=1), -1))


def test_every_example_has_a_weak_view_of_its_own():
    """Of one point given many times a view that moves it far gives more than one label."""
    data = ClientData(
        jnp.ones((30, 4)),
        jnp.zeros(30, jnp.int32),
        jnp.zeros(30),
        jnp.zeros(30, bool),
        jnp.ones(30, bool),
    )

    def moved(key, x):
        return x + 5 * jax.random.normal(key, x.shape)

    found, _ = labeled(client_of(weakly(moved), LINEAR.init(KEY), data), KEY, 0.5)
    assert len(np.unique(found.label)) > 1


@pytest.mark.slow
def test_every_batch_has_the_confident_beside_any():
    """`size` rows of the confident set, each once an epoch, beside as many drawn out of all."""
    n = 23
    weight = (jnp.arange(n) % 3 == 0).astype(jnp.float32)
    label = jnp.where(jnp.arange(n) < 20, 0, -1)
    data = ClientData(
        jnp.zeros((n, 1)), label, weight, jnp.zeros(n, dtype=bool), jnp.ones(n, dtype=bool)
    )
    plan = _beside_all(data, Batches("beside_all", 4, 1400), KEY)
    assert plan.num_steps == 1400 * 2  # 7 confident
    index, used = map(np.asarray, jax.vmap(plan.rows)(jnp.arange(plan.num_steps)))
    first = [
        np.sort(rows[mask])
        for rows, mask in zip(
            index[:, :4].reshape(1400, 8), used[:, :4].reshape(1400, 8), strict=True
        )
    ]
    for rows in first:
        np.testing.assert_array_equal(rows, np.arange(0, 20, 3))
    drawn = np.bincount(index[:, 4:].ravel(), minlength=n)
    assert (drawn[20:] == 0).all()
    assert stats.chisquare(drawn[:20]).pvalue > 1e-6
    # Four of 20 with replacement are all different with probability 0.727.
    different = sum(len(set(rows)) == 4 for rows in index[:, 4:])
    assert stats.binomtest(different, len(index), 20 * 19 * 18 * 17 / 20**4).pvalue > 1e-6
    # Any of the confident comes first in an epoch, and beside any one of all.
    pairs = np.bincount(20 * (index[::2, 0] // 3) + index[::2, 4], minlength=140)
    assert stats.chisquare(pairs).pvalue > 1e-6
    np.testing.assert_array_equal(used[:, :4], used[:, 4:])


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
        aggregate=server_optimizer(optax.sgd(1.0, momentum=0.5)),
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
