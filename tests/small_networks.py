"""Networks for small inputs: states in which every leaf counts, and examples."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

CIFAR, GREY, MINI = (32, 32, 3), (28, 28, 1), (84, 84, 3)
NUM_CLASSES, BATCH = 5, 4


class DeepHead(nnx.Module):
    """A head of two layers, neither of which is called one; features are as wide as no other layer."""

    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 5, rngs=rngs)
        self.c = nnx.Linear(5, 3, rngs=rngs)

    def features(self, x, rngs=None):
        return jnp.tanh(self.a(x))

    def head(self, features):
        return self.c(jnp.tanh(self.b(features)))


def size_of(state):
    return sum(leaf.size for leaf in jax.tree.leaves(state))


def template(model):
    return jax.eval_shape(model.init, jax.random.key(0))


def random_state(model, seed=0):
    """Every leaf random, so that no bias, gain or statistic can be left out unnoticed."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        shape = leaf.shape
        if path[-1] == "kernel":
            values = rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[:-1]))
        elif path[-1] in ("scale", "var", "gain"):
            values = rng.uniform(0.5, 1.5, shape)
        else:
            values = rng.uniform(-0.3, 0.3, shape)
        return leaf.replace(jnp.asarray(values, jnp.float32))

    leaves = nnx.to_flat_state(template(model))
    return nnx.from_flat_state([(path, draw(path, leaf)) for path, leaf in leaves])


def inputs_of(shape, num=BATCH, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num, *shape)), jnp.float32)
