"""Parts of methods with a mean teacher: states {online, target}; the optimizer updates the online network.

    theta_t <- alpha theta_t + (1 - alpha) theta_s      after a step of theta_s

(Tarvainen, Valpola, NeurIPS 2017.) The weight of the consistency loss grows with the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.models.model import compose
from jaxfed.training.local.local_training import Trained
from jaxfed.training.local.losses import Loss
from jaxfed.training.server_state import together

if TYPE_CHECKING:
    from jaxfed.models import Model
    from jaxfed.training.round.client_round import ClientRound

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
    """Apply the optimizer to the online network; the target stays. Its state is as for one network."""

    def update(
        gradient: nnx.State, state: optax.OptState, parameters: Any = None
    ) -> tuple[Any, optax.OptState]:
        moved, state = optimizer.update(gradient["online"], state, parameters["online"])
        still = jax.tree.map(jnp.zeros_like, gradient["target"])
        return together(online=moved, target=still), state

    return optax.GradientTransformation(lambda both: optimizer.init(both["online"]), update)


class Teacher(NamedTuple):
    """A client's state: its mean teacher, and the number of steps that it has followed, int32 scalar."""

    model: nnx.State
    steps: jax.Array


def mean_teacher_steps(
    client: ClientRound,
    loss: Loss,
    average: float,
    kept: Callable[[nnx.State], nnx.State] = lambda network: network,
) -> tuple[Trained, Teacher]:
    """Local steps on states {online, target} beside the client's own teacher, its state.

    The online network starts as the received model. The target keeps the weight min(1 - 1/n, `average`) in
    its n-th step of all rounds. `kept` is the part of a network that the teacher keeps; the rest is received
    in each round. Returns the result of the steps with the online network alone, and the teacher.
    """
    client_teacher, received, plain = client.state, client.model, client.training.local.optimizer
    teacher = nnx.merge_state(
        received, kept_or_first(client_teacher.steps, client_teacher.model, kept(received))
    )

    def follow(parameters: nnx.State, step: jax.Array, _: jax.Array) -> nnx.State:
        number = (client_teacher.steps + step + 1).astype(jnp.float32)
        return followed(parameters, jnp.minimum(1 - 1 / number, average))

    trained = client.steps(
        loss,
        start=together(online=received, target=teacher),
        optimizer=lambda rate: online_only(plain(rate)),
        after_step=follow,
    )
    after = Teacher(kept(trained.state["target"]), client_teacher.steps + trained.num_steps)
    return trained._replace(state=trained.state["online"]), after


def kept_or_first(steps: jax.Array, stored: nnx.State, received: nnx.State) -> nnx.State:
    """Return a client's own network or, before its first step, the received one."""
    return jax.tree.map(lambda kept, new: jnp.where(steps > 0, kept, new), stored, received)
