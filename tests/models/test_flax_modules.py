"""Flax networks as their users write them, and what cannot be trained by clients."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import nnx

from jaxfed.models import from_flax

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
KEY = jax.random.key(1)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


class Told(Net):
    """Is told by its arguments what it does."""

    def __call__(self, x, *, training, rngs=None):
        x = self.norm(self.first(x), use_running_average=not training)
        return self.last(nnx.Dropout(0.5)(x, deterministic=not training, rngs=rngs))


class WithFeatures(Net):
    def features(self, x):
        return self.dropout(nnx.relu(self.norm(self.first(x))))

    def head(self, features):
        return self.last(features)


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        x = nn.Dropout(0.5, deterministic=not train)(nn.relu(x))
        return nn.Dense(3)(x)


NETWORKS = {
    "nnx": Net,
    "linen": LinenNet(),
    "told": Told,
    "with features": WithFeatures,
    "an nnx module": Net(nnx.Rngs(0)),
}


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS)
def model(request):
    return from_flax(request.param, (4,))


@pytest.mark.sample(2)
def test_training_draws_dropout_of_its_key_and_moves_statistics(model):
    state = model.init(KEY)
    train = jax.jit(model.train_apply)
    keys = jax.random.split(jax.random.key(2), 2)
    (logits, moved), (again, _), (other, _) = (train(state, X, keys[i]) for i in (0, 0, 1))
    assert logits.shape == (6, 3)
    np.testing.assert_array_equal(logits, again)
    assert not np.allclose(logits, other)
    assert [path for path, _ in nnx.to_flat_state(moved)] == [
        path for path, _ in nnx.to_flat_state(state)
    ]
    before, after = (jax.tree.leaves(nnx.filter_state(s, nnx.BatchStat)) for s in (state, moved))
    assert all(not np.allclose(a, b) for a, b in zip(before, after, strict=True))
    parameters = (jax.tree.leaves(nnx.filter_state(s, nnx.Param)) for s in (state, moved))
    for a, b in zip(*parameters, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.sample(3)
def test_evaluation_is_by_running_statistics_one_example_at_a_time(model):
    state, apply = jax.jit(model.train_apply)(model.init(KEY), X, KEY)[1], jax.jit(model.apply)
    together, apart = apply(state, X), [apply(state, X[i : i + 1]) for i in range(6)]
    np.testing.assert_allclose(together, np.concatenate(apart), rtol=1e-5, atol=1e-6)
    by_parts = jax.jit(lambda state: model.head(state, model.features(state, X)))
    np.testing.assert_array_equal(by_parts(state), together)


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        if train:
            x = x + jax.random.normal(self.make_rng("noise"), x.shape)
        return nn.Dense(3)(x)


def test_linen_draws_from_streams_of_any_name():
    model = from_flax(Noisy(), (4,))
    state = model.init(KEY)
    one, again, other = (model.train_apply(state, X, jax.random.key(i))[0] for i in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)
    assert not np.allclose(one, model.apply(state, X))
