"""Parts of methods with a mean teacher: states {online, target}; the optimizer updates the online network.

    theta_t <- alpha theta_t + (1 - alpha) theta_s      after a step of theta_s

(Tarvainen, Valpola, NeurIPS 2017.) The weight of the consistency loss grows with the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.tree_util import DictKey

from jaxfed.models.model import compose
from jaxfed.training.server.server_state import together

if TYPE_CHECKING:
    from jaxfed.models import Model

Evaluated = Literal["target", "online"]


def twins(network: nnx.State) -> nnx.State:
    """Return {online, target}, two copies of one network."""
    return together(online=network, target=network)


def siamese(
    model: Model,
    evaluated: Evaluated,
    made: Callable[[nnx.State], nnx.State] = twins,
    run: Sequence[Evaluated] = ("online", "target"),
) -> Model:
    """The model of states {online, target}; one network is evaluated, training runs those of `run`.

    `made` returns the state of a network.
    """

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        trained = {name: model.train_features(state[name], x, key) for name in run}
        moved = {name: after for name, (_, after) in trained.items()}
        return trained[evaluated][0], together(**{**state, **moved})

    return compose(
        init=lambda key: made(model.init(key)),
        features=lambda state, x: model.features(state[evaluated], x),
        head=lambda state, features: model.head(state[evaluated], features),
        train_features=train_features,
    )


def ramp_up(round: jax.Array, length: int) -> jax.Array:
    """exp(-5 (1 - r / R)^2) for round number r up to R = `length`, then 1."""
    share = jnp.minimum(round / length, 1) if length else jnp.ones_like(round)
    return jnp.exp(-5 * jnp.square(1 - share))


def followed(parameters: nnx.State, alpha: jax.Array) -> nnx.State:
    """Return the parameters {online, target} after the target's step."""
    online = parameters["online"]
    target = jax.tree.map(lambda t, s: alpha * t + (1 - alpha) * s, parameters["target"], online)
    return together(online=online, target=target)


def online_only(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply the optimizer to the online network only; the target, whose gradient is 0, stays unchanged."""

    def is_online(parameters: nnx.State) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: path[0] == DictKey("online"), parameters
        )

    return optax.masked(optimizer, is_online)
