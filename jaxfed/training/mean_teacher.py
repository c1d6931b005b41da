"""Parts of methods with a mean teacher: states {online, target}; the optimizer updates the online network.

    theta_t <- alpha theta_t + (1 - alpha) theta_s      after a step of theta_s

(Tarvainen, Valpola, NeurIPS 2017.) The weight of the consistency loss grows with the rounds.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.tree_util import DictKey

from jaxfed.training.server.server_state import together


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
