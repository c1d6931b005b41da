"""SemiFL: its loss transcribed to NumPy, labels, the confident set and batches.

Whole rounds: test_semifl_rounds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import affine, log_softmax
from scipy import stats
from small_training import KEY, client_of, double

from jaxfed.algorithms.semifl import labeled, semifl_loss
from jaxfed.models.mlp import mlp
from jaxfed.training.local.batches import Batches, _beside_all
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.local.losses import Batch
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
