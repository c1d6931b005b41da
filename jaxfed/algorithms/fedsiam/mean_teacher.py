"""Mean teacher: a trained network, and a moving average of it (Tarvainen, Valpola, NeurIPS 2017).

    theta_t <- alpha theta_t + (1 - alpha) theta_s      after each step of theta_s

alpha grows with the steps: at first the teacher is the plain mean of all past theta_s, later an exponential
moving average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.models.model import compose
from jaxfed.training.local.local_update import AfterStep
from jaxfed.training.mean_teacher import followed
from jaxfed.training.server.server_state import together

if TYPE_CHECKING:
    from jaxfed.models import Model

Evaluated = Literal["target", "online"]


def twins(state: nnx.State) -> nnx.State:
    """Return {online, target}, two copies of one network."""
    return together(online=state, target=state)


def siamese(model: Model, evaluated: Evaluated) -> Model:
    """The model of states {online, target}; one network is evaluated, training runs both."""

    def init(key: jax.Array) -> nnx.State:
        return twins(model.init(key))

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return model.features(state[evaluated], x)

    def head(state: nnx.State, features: jax.Array) -> jax.Array:
        return model.head(state[evaluated], features)

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        trained = {name: model.train_features(state[name], x, key) for name in state}
        moved = together(**{name: after for name, (_, after) in trained.items()})
        return trained[evaluated][0], moved

    return compose(init=init, features=features, head=head, train_features=train_features)


def moving_average(most: float, rounds: jax.Array) -> AfterStep:
    """theta_t <- alpha theta_t + (1 - alpha) theta_s with alpha = min(1 - 1 / (n + 1), most).

    n = 1, 2, ... is the step's number over all rounds. Each of the `rounds` before, float32, counts as many
    steps as this one has.
    """

    def follow(parameters: nnx.State, step: jax.Array, num_steps: jax.Array) -> nnx.State:
        number = rounds * num_steps.astype(jnp.float32) + step.astype(jnp.float32) + 1
        alpha = jnp.minimum(1 - 1 / (number + 1), most)
        return followed(parameters, alpha)

    return follow
