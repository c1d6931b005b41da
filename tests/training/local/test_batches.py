"""How one client cuts its examples into batches and episodes; padding and emptiness leave no trace."""

import functools
from functools import partial
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxfed.training.local import losses
from jaxfed.training.local.batches import (
    Batches,
    ClientData,
    Episodes,
    _episodes,
    draw,
)
from jaxfed.training.local.local_training import train
from jaxfed.training.local.losses import Batch

KEY = jax.random.key(0)


MOST_STEPS = 64


def client(num_labeled, num_unlabeled, capacity, pseudo_labeled=True):
    """A client whose i-th example is the number i; the labeled come first."""
    number = np.arange(capacity)
    is_labeled, mask = number < num_labeled, number < num_labeled + num_unlabeled
    label = np.where(is_labeled | (mask & pseudo_labeled), number % 3, -1)
    return ClientData(
        x=number.astype(np.int32),
        label=label.astype(np.int32),
        weight=np.where(label >= 0, 1, 0).astype(np.float32),
        is_labeled=is_labeled,
        mask=mask,
    )


@functools.cache
def recorder(batches):
    """A compiled round that writes down the rows of each step."""
    capacity = batches.capacity
    state = nnx.State(
        {
            "w": nnx.Param(jnp.float32(0)),
            "step": nnx.BatchStat(jnp.int32(0)),
            "rows": nnx.BatchStat(jnp.full((MOST_STEPS, capacity), -1)),
            "used": nnx.BatchStat(jnp.zeros((MOST_STEPS, capacity), bool)),
        }
    )

    def record(state, anchor, batch: Batch, key):
        step = state["step"][...]
        rows = state["rows"][...].at[step].set(batch.x)
        used = state["used"][...].at[step].set(batch.used)
        statistics = {"step": step + 1, "rows": rows, "used": used}
        moved = nnx.State({name: nnx.BatchStat(value) for name, value in statistics.items()})
        return 0 * state["w"][...], nnx.merge_state(nnx.State({"w": state["w"]}), moved)

    return jax.jit(
        lambda data, key: train(
            state, data, key, loss=record, optimizer=optax.sgd(0.1), batches=batches
        )
    )


def seen(data, batches, key=KEY):
    """The rows of each step: lists of example numbers that counted, and all that were there."""
    trained = recorder(batches)(data, key)
    steps = int(trained.num_steps)
    rows, used = (np.asarray(trained.state[name][...])[:steps] for name in ("rows", "used"))
    return [r[u].tolist() for r, u in zip(rows, used, strict=True)], rows.tolist()


@given(
    num_labeled=st.integers(0, 9),
    num_unlabeled=st.integers(0, 9),
    size_and_epochs=st.sampled_from([(4, 2), (1, 1)]),  # a program each
)
def test_joint_epochs_pass_over_every_usable_example_once(
    num_labeled, num_unlabeled, size_and_epochs
):
    size, epochs = size_and_epochs
    n = num_labeled + num_unlabeled
    used, rows = seen(client(num_labeled, num_unlabeled, 20), Batches("joint", size, epochs))
    per_epoch = -(-n // size)
    assert len(used) == epochs * per_epoch
    for epoch in range(epochs):
        passed = used[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(chain(*passed)) == list(range(n))
        assert all(len(batch) == size for batch in passed[:-1])
    assert {row for batch in rows for row in batch} <= set(range(n))  # filled with real examples


@pytest.mark.slow
@given(
    num_labeled=st.integers(0, 9),
    num_unlabeled=st.integers(0, 14),
    size=st.integers(1, 5),
    ratio=st.integers(1, 2),
)
def test_paired_batches_are_labeled_in_part_and_an_epoch_passes_the_unlabeled(
    num_labeled, num_unlabeled, size, ratio
):
    data = client(num_labeled, num_unlabeled, 30)
    used, rows = seen(data, Batches("paired", size, 1, unlabeled_ratio=ratio))
    labeled = [[i for i in batch if i < num_labeled] for batch in used]
    unlabeled = [[i for i in batch if i >= num_labeled] for batch in used]
    assert sorted(chain(*unlabeled)) == list(range(num_labeled, num_labeled + num_unlabeled))
    if num_unlabeled and num_labeled:
        part = min(size, num_labeled)
        assert all(len(batch) == part for batch in labeled)
        assert all(len(batch) == ratio * part for batch in unlabeled[:-1])
        # Cycled: no label comes up twice more often than another.
        counts = np.bincount(list(chain(*labeled)), minlength=num_labeled)
        assert counts.max() - counts.min() <= 1
    elif num_labeled:
        assert sorted(chain(*labeled)) == list(range(num_labeled))
        assert all(len(batch) == min(size, num_labeled) for batch in labeled[:-1])
    elif num_unlabeled:
        assert all(len(batch) == (1 + ratio) * size for batch in unlabeled[:-1])
    else:
        assert used == []
    assert {row for batch in rows for row in batch} <= set(range(num_labeled + num_unlabeled))


@pytest.mark.parametrize("scheme", ["joint", "paired"])
@pytest.mark.parametrize(("num_labeled", "steps"), [(12, 7), (3, 7), (0, 0)])
def test_a_number_of_steps_whatever_the_number_of_examples(scheme, num_labeled, steps):
    """Epochs of 3 and of 1 step: the two orders come round again."""
    used, _ = seen(client(num_labeled, 0, 12), Batches(scheme, 4, 2, steps=7))
    assert len(used) == steps
    per_epoch = num_labeled // 4 or 1
    assert used[2 * per_epoch :] == used[: len(used) - 2 * per_epoch]
    for epoch in range(steps // per_epoch):
        passed = used[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(chain(*passed)) == list(range(num_labeled))


class Linear:
    """Logistic regression on two features, with a running mean of its inputs."""

    by_example = False

    @staticmethod
    def init():
        return nnx.State({"w": nnx.Param(jnp.zeros((2, 3))), "mean": nnx.BatchStat(jnp.zeros(2))})

    @staticmethod
    def train_apply(state, x, key):
        mean = 0.9 * state["mean"][...] + 0.1 * x.mean(axis=0)
        moved = nnx.State({"w": state["w"], "mean": nnx.BatchStat(mean)})
        return x @ state["w"][...], moved


def vectors(num_labeled, num_unlabeled, capacity):
    """The same examples whatever the capacity; rubbish behind them."""
    data = client(num_labeled, num_unlabeled, capacity)
    x = np.full((capacity, 2), np.nan, np.float32)
    n = num_labeled + num_unlabeled
    x[:n] = np.random.default_rng(0).standard_normal((n, 2))
    return data._replace(x=x)


@functools.cache
def trainer(batches):
    loss = losses.weighted_loss(Linear)
    return jax.jit(
        lambda data: train(
            Linear.init(), data, KEY, loss=loss, optimizer=optax.sgd(0.5), batches=batches
        )
    )


def trained(data, batches):
    return trainer(batches)(data)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("scheme", ["joint", "paired"])
@pytest.mark.parametrize(("num_labeled", "num_unlabeled"), [(5, 9), (5, 0), (0, 9)])
@pytest.mark.sample(2)
def test_padding_is_inert_to_the_bit(scheme, num_labeled, num_unlabeled):
    batches = Batches(scheme, 4, 3)
    results = [trained(vectors(num_labeled, num_unlabeled, n), batches) for n in (14, 40)]
    assert np.isfinite(results[0].state["w"][...]).all()
    assert np.abs(results[0].state["w"][...]).max() > 0
    assert_same(results[1], results[0])


def test_a_step_by_hand():
    """w <- w - 0.5 (mean over used rows of weight (softmax - onehot) x + correction)."""
    data = vectors(3, 0, 3)._replace(weight=np.float32([1, 0.5, 0]))
    correction = nnx.State({"w": nnx.Param(jnp.full((2, 3), 0.25))})
    step = functools.partial(
        train,
        loss=losses.weighted_loss(Linear),
        optimizer=optax.sgd(0.5),
        batches=Batches("joint", 4, 1),
        correction=correction,
    )
    result = jax.jit(step)(Linear.init(), data, KEY)
    x, residual = np.asarray(data.x), np.full((3, 3), 1 / 3) - np.eye(3)
    gradient = x.T @ (residual * np.array([1, 0.5, 0])[:, None]) / 3 + 0.25
    np.testing.assert_allclose(result.state["w"][...], -0.5 * gradient, rtol=1e-5)
    assert float(result.loss) == pytest.approx(1.5 * np.log(3) / 3)


def test_every_pair_of_support_and_query_is_equally_likely():
    """Six examples of class 0, two padding rows that have its label, and unlabeled ones."""
    label = np.array([0] * 6 + [1, 1, 2, -1, -1, -1, 0, -1], np.int32)
    is_example = np.arange(14) < 12
    sizes = Episodes(num_classes=3, support=1, query=1, unlabeled=2)
    drawn = jax.jit(
        jax.vmap(partial(draw, sizes=sizes), in_axes=(0, None, None, None)),
    )
    keys = jax.random.split(jax.random.key(0), 3000)
    index, used = map(
        np.asarray, drawn(keys, label, is_example & (label >= 0), is_example & (label < 0))
    )
    pairs = np.bincount(6 * index[:, 0] + index[:, 3], minlength=36).reshape(6, 6)
    assert not pairs.trace()
    assert stats.chisquare(pairs[~np.eye(6, dtype=bool)]).pvalue > 1e-4
    unlabeled = np.bincount(index[:, 6:].ravel(), minlength=14)
    assert unlabeled[9:12].sum() == 6000
    assert stats.chisquare(unlabeled[9:12]).pvalue > 1e-4
    np.testing.assert_array_equal(used.all(axis=0), [1, 1, 1, 1, 1, 0, 1, 1])  # class 2 has one


def test_one_step_tells_nothing_of_the_next():
    """A client's supports of one of six labels in two steps: 36 pairs, all equally likely."""
    is_labeled = jnp.arange(8) < 6
    label = jnp.where(is_labeled, 0, -1)
    data = ClientData(jnp.zeros((8, 1)), label, jnp.ones(8), is_labeled, jnp.ones(8, bool))
    batches = Batches("episodes", 3, 2, episodes=Episodes(1, support=1, query=1, unlabeled=1))

    def supports(key):
        plan = _episodes(data, batches, key)
        return jnp.stack([plan.rows(step)[0][0] for step in range(2)])

    keys = jax.random.split(jax.random.key(0), 3600)
    first, second = np.asarray(jax.jit(jax.vmap(supports))(keys)).T
    assert stats.chisquare(np.bincount(6 * first + second, minlength=36)).pvalue > 1e-6
