"""The server's step from clients' updates: weights p_k, adaptive optimizers, the mean of clipped updates.

The mean itself is `jaxfed.training.round.round.weighted_mean`. Clipped, with Gaussian noise (Geyer et al.,
2017), it is

    mean = 1/K ( sum_k delta_k min(1, S / |delta_k|) + N(0, z^2 S^2 I) ),    w <- w + server_optimizer(-mean)

over the K clients with a positive weight, |.| the norm over all parameters together. The server optimizer's
step is post-processing of the noisy mean: it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.random_streams import Stream
from jaxfed.settings import Positive, Share, check_value, hinted
from jaxfed.training.local.batches import ClientData, usable
from jaxfed.training.server_state import is_finite

Weighting = Callable[[ClientData], jax.Array]  # a client's weight in the mean, float32 scalar


class Aggregate(NamedTuple):
    """The server's step from the clients' updates.

    Fields:
        init: model, key of the run -> the step's state before the first round.
        apply: model, deltas [K, ...], weights float32 [K], state -> model, state. In methods with S means,
            weights are [K, S]: each client's weight in each of them.
        is_mean: True if `apply` is a function of sum_k p_k delta_k / sum_k p_k and of sum_k p_k alone, so
            that a sum under masks is enough (`jaxfed.training.round.masked_sums`).
    """

    init: Callable[[nnx.State, jax.Array], Any]
    apply: Callable[[nnx.State, nnx.State, jax.Array, Any], tuple[nnx.State, Any]]
    is_mean: bool = False


def weighted_sum(weights: jax.Array, values: jax.Array) -> jax.Array:
    """sum_k p_k x_k over the leading axis, in float32 throughout."""
    return jnp.tensordot(weights, values, axes=1, precision=jax.lax.Precision.HIGHEST)


def in_all(weights: jax.Array) -> jax.Array:
    """Each client's total weight over all means, [K] of weights [K] or [K, S]."""
    return weights.sum(axis=tuple(range(1, weights.ndim)))


def by_examples(data: ClientData) -> jax.Array:
    """p_k: the number of examples that the client trains on (McMahan et al.)."""
    return jnp.sum(usable(data)).astype(jnp.float32)


def uniformly(data: ClientData) -> jax.Array:
    """p_k: 1 for every client that has something to train on; the plain mean of the trained models.

    Equals XCLP's plain mean (A.2) if every client of the cohort P has a label or a pseudo-label. A client
    with neither returns the model as it received it, and is left out.
    """
    return jnp.any(usable(data)).astype(jnp.float32)


def over_cohort(data: ClientData) -> jax.Array:
    """p_k: 1 for every client; A.2's 1/|P| to the letter.

    A client with nothing to train on counts with the model that it received: the more of them there are,
    the shorter is the server's step.
    """
    del data
    return jnp.float32(1)


def largest_weight(weighting: Weighting, num_examples: int) -> float:
    """Return the weight of a client that trains on all its examples; inf for a user's own weighting."""
    if weighting not in WEIGHTINGS.values():
        return np.inf
    every, ones = jnp.ones(num_examples, bool), jnp.ones(num_examples)
    label = jnp.zeros(num_examples, jnp.int32)
    return float(weighting(ClientData(ones, label, ones, every, every)))


def check_weights(weights: jax.Array, model: nnx.State) -> None:
    """Raise a UsageError for a weight that is negative or not finite.

    Weights that a method makes of a diverged model pass: the run reports that itself.
    """
    values = np.asarray(weights)
    if not np.all(np.isfinite(values) & (values >= 0)) and is_finite(model):
        raise UsageError(
            "a client's weight is negative or not finite",
            key="weighting",
            owner="ServerTraining",
            allowed="return finite numbers from 0 on",
        )


WEIGHTINGS: dict[str, Weighting] = {
    "examples": by_examples,
    "uniform": uniformly,
    "cohort": over_cohort,
}


SECOND_MOMENTS: dict[str, Callable[[jax.Array, jax.Array, float], jax.Array]] = {
    "adagrad": lambda v, square, beta2: v + square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * jnp.sign(v - square),
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
}
"""Optimizer -> second moment: v, d^2, beta_2 -> v."""


class Moments(NamedTuple):
    """m and v, each of the form of the parameters."""

    first: Any
    second: Any


@hinted
def adaptive(
    name: str,
    learning_rate: float,
    *,
    beta1: Share = 0.9,
    beta2: Share = 0.99,
    tau: Positive = 1e-3,
) -> optax.GradientTransformation:
    """FedAdagrad, FedYogi or FedAdam (Reddi et al., ICLR 2021, Algorithm 2), elementwise:

        m <- beta_1 m + (1 - beta_1) d
        v <- v + d^2                                             FedAdagrad
        v <- v - (1 - beta_2) d^2 sign(v - d^2)                  FedYogi
        v <- beta_2 v + (1 - beta_2) d^2                         FedAdam
        w <- w + eta m / (sqrt(v) + tau)

    with d the clients' mean change; the gradient that a server optimizer gets is -d. There is no bias
    correction (optax's Adam and Yogi have it, its Adagrad no m); m = 0 and v = tau^2 at first ("v_{-1} >=
    tau^2"). The paper's defaults: beta_1 = 0.9 (Adagrad 0), beta_2 = 0.99, tau = 1e-3.

    `name` is a key of `SECOND_MOMENTS`.
    """
    check_value("learning_rate", learning_rate, Positive, owner="adaptive")
    second_moment = SECOND_MOMENTS[name]

    def init(parameters: Any) -> Moments:
        return Moments(
            jax.tree.map(jnp.zeros_like, parameters),
            jax.tree.map(lambda w: jnp.full_like(w, tau**2), parameters),
        )

    def update(gradient: Any, state: Moments, parameters: Any = None) -> tuple[Any, Moments]:
        del parameters
        first = jax.tree.map(lambda m, g: beta1 * m - (1 - beta1) * g, state.first, gradient)
        second = jax.tree.map(
            lambda v, g: second_moment(v, jnp.square(g), beta2), state.second, gradient
        )
        step = jax.tree.map(lambda m, v: learning_rate * m / (jnp.sqrt(v) + tau), first, second)
        return step, Moments(first, second)

    return optax.GradientTransformation(init, update)


class ClippedMean(NamedTuple):
    """State that the server keeps between rounds.

    Fields:
        inner: the server optimizer's state.
        key: typed; noise is drawn from it.
        round: int32, number of means computed.
        norm: float32, the median of the last round's norms before clipping.
        clipped: float32, the share of clients whose norm was above S.
    """

    inner: Any
    key: jax.Array
    round: jax.Array
    norm: jax.Array
    clipped: jax.Array


def clipped_mean(inner: Aggregate, *, clip: float, noise_multiplier: float) -> Aggregate:
    """The server's step, taken by `inner`; S is `clip`. Clients with a positive weight count equally."""

    def init(model: nnx.State, key: jax.Array) -> ClippedMean:
        noise_key, zero = jax.random.fold_in(key, Stream.NOISE), jnp.float32(0)
        return ClippedMean(inner.init(model, key), noise_key, jnp.int32(0), zero, zero)

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: ClippedMean
    ) -> tuple[nnx.State, ClippedMean]:
        counts = weights > 0
        number = jnp.maximum(jnp.sum(counts), 1).astype(jnp.float32)
        norms = jax.vmap(norm)(deltas)
        median = jnp.nan_to_num(jnp.nanmedian(jnp.where(counts, norms, jnp.nan)))
        most = jnp.float32(clip)
        factors = shrinking(norms, most)
        shares = counts.astype(jnp.float32) / number
        mean = jax.tree.map(partial(weighted_sum, shares), jax.vmap(scaled)(deltas, factors))
        if noise_multiplier:
            key = jax.random.fold_in(state.key, state.round)
            mean = noisy(mean, key, noise_multiplier * most / number)
        anyone = jnp.any(counts).astype(jnp.float32)
        one = jax.tree.map(lambda leaf: leaf[None], mean)
        updated, after = inner.apply(model, one, anyone[None], state.inner)
        clipped = jnp.sum(counts & (norms > most)).astype(jnp.float32) / number
        return updated, ClippedMean(after, state.key, state.round + 1, median, clipped)

    return Aggregate(init, apply)


def norm(tree: Any) -> jax.Array:
    """|x| over all leaves together, float32 scalar."""
    return jnp.sqrt(
        sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)), jnp.float32(0))
    )


def shrinking(norms: jax.Array, most: jax.Array | float) -> jax.Array:
    """min(1, S / |x|): the factor that clips x to norm S; 1 for x = 0."""
    return jnp.minimum(1, most / jnp.maximum(norms, jnp.finfo(jnp.float32).tiny))


def scaled(tree: Any, factor: jax.Array) -> Any:
    """Return factor * x."""
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def noisy(tree: Any, key: jax.Array, deviation: jax.Array) -> Any:
    """x + N(0, deviation^2 I), an independent draw for each number."""
    draws = optax.tree_utils.tree_random_like(key, tree, jax.random.normal)
    return jax.tree.map(lambda leaf, draw: leaf + deviation * draw, tree, draws)
