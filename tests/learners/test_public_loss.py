"""The loss on own and public batches against its formula, and which public examples are drawn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from float64_training import softmax

from jaxfed.learners.learner import PublicTargets
from jaxfed.learners.networks import PUBLIC_LOSSES, distillation_loss, public_rows
from jaxfed.models.model import compose
from jaxfed.training.local.losses import Batch

KEY = jax.random.key(0)
C = 3


def shown(state, x, key):
    """Features are the examples, and the state remembers them."""
    return x, nnx.State({"seen": nnx.BatchStat(x)})


MODEL = compose(
    init=lambda key: nnx.State({}),
    features=lambda state, x: x,
    head=lambda state, features: features,
    train_features=shown,
)


DISTANCES = {
    "label": lambda f, z, label: -np.log(softmax(f)[np.arange(len(f)), label]),
    "soft_cross_entropy": lambda f, z, label: -(z * np.log(softmax(f))).sum(axis=1),
    "squared_distance": lambda f, z, label: ((softmax(f) - z) ** 2).sum(axis=1),
    "score_l1": lambda f, z, label: np.abs(f - z).mean(axis=1),
}


def own_batch(size, used):
    rng = np.random.default_rng(1)
    label = jnp.asarray(rng.integers(C, size=size), jnp.int32)
    return Batch(
        x=jnp.asarray(rng.standard_normal((size, C)), jnp.float32),
        label=label,
        weight=jnp.ones(size),
        used=jnp.arange(size) < used,
        is_labeled=jnp.ones(size, bool),
    )


def public_of(num, seed=2):
    rng = np.random.default_rng(seed)
    return PublicTargets(
        x=jnp.asarray(rng.standard_normal((num, C)), jnp.float32),
        label=jnp.asarray(rng.integers(C, size=num), jnp.int32),
        weight=jnp.asarray(rng.uniform(0.5, 1, num), jnp.float32),
        soft=jnp.asarray(softmax(rng.standard_normal((num, C))), jnp.float32),
    )


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def taken(public, batch, size, public_loss, pseudo_weight):
    loss = distillation_loss(MODEL, public, pseudo_weight=pseudo_weight, public_loss=public_loss)
    rows = public_rows(public, batch_size=size, public_loss=public_loss)
    return loss(nnx.State({}), nnx.State({}), batch._replace(beside=rows(KEY)), KEY)


def value_and_seen(public, batch, size=8, public_loss="label", pseudo_weight=0.7):
    value, state = taken(public, batch, size, public_loss, pseudo_weight)
    return float(value), np.asarray(state["seen"][...])


@pytest.mark.sample(2)
@pytest.mark.parametrize("public_loss", PUBLIC_LOSSES)
def test_the_value_is_the_formulas(public_loss):
    public, batch = public_of(20), own_batch(5, used=4)
    value, seen = value_and_seen(public, batch, public_loss=public_loss)
    np.testing.assert_array_equal(seen[:5], batch.x)
    rows = (seen[5:, None] == np.asarray(public.x)).all(axis=-1).argmax(axis=1)
    parts = public.x, public.soft, public.label, public.weight
    f, z, label, w = (np.asarray(part)[rows] for part in parts)
    own = DISTANCES["label"](np.asarray(batch.x), None, np.asarray(batch.label))[:4].mean()
    theirs = (w * DISTANCES[public_loss](f, z, label)).sum() / w.sum()
    assert value == pytest.approx(own + 0.7 * theirs, rel=1e-5)


@pytest.mark.parametrize("public_loss", ["label", "squared_distance"])
def test_only_examples_that_count_are_drawn_all_alike(public_loss):
    """Of 10, those of weight 0 never; those without a label only where soft targets are learned from."""
    public = public_of(10)
    public = public._replace(
        label=public.label.at[jnp.array([2, 3])].set(-1),
        weight=public.weight.at[jnp.array([0, 9])].set(0),
    )
    expected = {1, 4, 5, 6, 7, 8} | ({2, 3} if public_loss != "label" else set())
    _, seen = value_and_seen(public, own_batch(2, used=2), size=6000, public_loss=public_loss)
    rows = (seen[2:, None] == np.asarray(public.x)).all(axis=-1).argmax(axis=1)
    times = np.bincount(rows, minlength=10)
    assert set(np.flatnonzero(times)) == expected
    mean = 6000 / len(expected)
    assert np.abs(times[sorted(expected)] - mean).max() < 4.5 * np.sqrt(mean)


def test_a_missing_part_adds_nothing_and_is_seen_by_no_statistics():
    public, batch = public_of(10), own_batch(2, used=2)
    nothing = public._replace(label=jnp.full(10, -1))
    value, seen = value_and_seen(nothing, batch, size=6000)
    own = DISTANCES["label"](np.asarray(batch.x), None, np.asarray(batch.label)).mean()
    assert value == pytest.approx(own, rel=1e-5)
    assert {tuple(x) for x in seen} <= {tuple(x) for x in np.asarray(batch.x)}

    without = batch._replace(used=jnp.zeros(2, bool))
    value, seen = value_and_seen(public, without, size=6000)
    taught, _ = value_and_seen(public, batch, size=6000)
    assert value == pytest.approx(taught - own, rel=1e-5)
    assert {tuple(x) for x in seen} <= {tuple(x) for x in np.asarray(public.x)}
