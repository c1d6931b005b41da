r"""Adaptive server optimizers (Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, ICLR 2021).

With d the clients' mean change (the gradient that a server optimizer gets is -d), elementwise:

    m <- beta_1 m + (1 - beta_1) d
    v <- v + d^2                                             FedAdagrad
    v <- v - (1 - beta_2) d^2 sign(v - d^2)                  FedYogi
    v <- beta_2 v + (1 - beta_2) d^2                         FedAdam
    w <- w + eta m / (sqrt(v) + tau)

Algorithm 2 of the paper, which has no bias correction (optax's Adam and Yogi have it, its Adagrad no m),
m = 0 and v = tau^2 at first ("v_{-1} >= tau^2"). The paper's defaults: beta_1 = 0.9 (Adagrad 0), beta_2 =
0.99, tau = 1e-3. FedAvgM (Hsu, Qi, Brown, 2019) is plain SGD with momentum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfed.settings import Positive, Share, check_value, hinted

SecondMoment = Callable[[jax.Array, jax.Array, float], jax.Array]  # v, d^2, beta_2 -> v


def _adagrad(v: jax.Array, square: jax.Array, beta2: float) -> jax.Array:
    del beta2
    return v + square


def _yogi(v: jax.Array, square: jax.Array, beta2: float) -> jax.Array:
    return v - (1 - beta2) * square * jnp.sign(v - square)


def _adam(v: jax.Array, square: jax.Array, beta2: float) -> jax.Array:
    return beta2 * v + (1 - beta2) * square


SECOND_MOMENTS: dict[str, SecondMoment] = {"adagrad": _adagrad, "yogi": _yogi, "adam": _adam}


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
    """FedAdagrad, FedYogi or FedAdam.

    Args:
        name: a key of `SECOND_MOMENTS`.
        learning_rate: eta.
        beta1: of m; 0 uses d itself.
        beta2: of v; Adagrad has none.
        tau: added to the root of v; v starts at its square; smaller is more adaptive.

    Raises:
        UsageError: a number that is not positive and finite in float32.
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
