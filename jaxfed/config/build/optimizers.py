"""Optimizers and learning rates of section `training`: the clients' and the server's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from jaxfed.config.sections import WITH_MOMENTUM, TrainingSection
from jaxfed.training.server.server_optimizers import adaptive


def client_optimizer(
    wanted: TrainingSection, learning_rate: jax.Array
) -> optax.GradientTransformation:
    """Return the clients' optimizer at a learning rate."""
    keywords: dict[str, Any] = {"learning_rate": learning_rate}
    if wanted.optimizer in WITH_MOMENTUM:
        keywords |= {"momentum": wanted.momentum or None, "nesterov": wanted.nesterov}
    optimizer = _promoting(getattr(optax, wanted.optimizer)(**keywords))
    if not wanted.weight_decay:
        return optimizer
    return optax.chain(optax.add_decayed_weights(wanted.weight_decay), optimizer)


def server_optimizer(wanted: TrainingSection) -> optax.GradientTransformation:
    """Return the server optimizer: SGD (FedAvg), with momentum (FedAvgM), or an adaptive one."""
    if wanted.server_optimizer == "sgd":
        return optax.sgd(wanted.server_learning_rate, momentum=wanted.server_momentum or None)
    return adaptive(
        wanted.server_optimizer,
        wanted.server_learning_rate,
        beta1=wanted.server_beta1,
        beta2=wanted.server_beta2,
        tau=wanted.server_tau,
    )


def _promoting(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Wrap the optimizer in JAX's standard dtype promotion, because Adam raises floats to integer powers."""

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(updates, state, params)

    return optax.GradientTransformation(optimizer.init, update)


def schedule(wanted: TrainingSection, rounds: int) -> Callable[[jax.Array], jax.Array]:
    """Return the clients' learning rate as a function of the rounds done."""
    if wanted.schedule == "constant":
        return optax.constant_schedule(wanted.learning_rate)
    return optax.cosine_decay_schedule(wanted.learning_rate, wanted.schedule_rounds or rounds)
