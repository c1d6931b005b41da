"""SemiFL: views, batches, and whole rounds in NumPy.

In rounds shares of mixtures are even, and every way in which partners may be drawn is tried.
"""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from float64_training import cross_entropy, gradient, logits, softmax, the_one_that_fits, weights_of
from scipy import stats
from small_round_checks import check_rounds
from small_training import KEY, RATE, client_of, double, shifted, training_of

from jaxfed.algorithms.semifl import labeled, semifl
from jaxfed.federation.clients import Federation
from jaxfed.models.mlp import mlp
from jaxfed.training import aggregate
from jaxfed.training.local.batches import Batches, ClientData, _beside_all
from jaxfed.training.round.round import server_optimizer
from jaxfed.training.specification import Training

LINEAR = mlp((4,), 3, hidden=())


def weakly(augment):
    return Training(LINEAR).with_local(augment=augment)


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


def test_beside_each_confident_row_any_is_drawn_alike():
    """Every row of the confident set once an epoch; those without a label are never drawn."""
    weight, label = (np.arange(23) % 3 == 0).astype(np.float32), np.where(np.arange(23) < 20, 0, -1)
    nobody = jnp.zeros(23, bool)
    data = ClientData(jnp.zeros((23, 1)), *map(jnp.asarray, (label, weight)), nobody, ~nobody)

    @jax.jit
    def drawn_rows(data):
        plan = _beside_all(data, Batches("beside_all", 4, 1400), KEY)
        return *jax.vmap(plan.rows)(jnp.arange(2800)), plan.num_steps

    index, used, num_steps = map(np.asarray, drawn_rows(data))
    assert num_steps == 2800
    first = index[:, :4].reshape(1400, 8)[used[:, :4].reshape(1400, 8)].reshape(1400, 7)
    np.testing.assert_array_equal(np.sort(first, axis=1), [np.arange(0, 20, 3)] * 1400)
    drawn = np.bincount(index[:, 4:].ravel(), minlength=23)
    assert (drawn[20:] == 0).all()
    assert stats.chisquare(drawn[:20]).pvalue > 1e-6
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


def test_rounds_are_those_of_the_transcription(tmp_path):
    held, federation = clients_and_server()
    algorithm = semifl(
        training=training_of(
            Batches("joint", 2, 1),
            augment=shifted,
            strong_augment=double,
            server_examples=federation.server_examples,
            server_batches=Batches("joint", 6, 1),
            weighting=aggregate.uniformly,
            aggregate=server_optimizer(optax.sgd(1.0, momentum=0.5)),
        ),
        threshold=THRESHOLD,
        mix_weight=MIX_WEIGHT,
        mix_alpha=1e9,
        max_norm=MAX_NORM,
    )
    check_rounds(algorithm, federation, [None] * 3, tmp_path)
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
            w, lambda v: cross_entropy(v, server_x.astype(np.float64) + 0.5, server_y), rate, norms
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
