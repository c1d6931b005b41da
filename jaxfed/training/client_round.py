"""One client's round: what it receives, what a method's local update is, and what it returns."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.training.ingredients import Training
from jaxfed.training.local_update import Batches, ClientData, ClientUpdate, Trained, train
from jaxfed.training.losses import Loss
from jaxfed.training.server_state import (
    with_statistics,
)


class Shared(NamedTuple):
    """What every client of a round receives.

    Fields:
        model: the server's parameters and statistics.
        control: a method's own (`ServerState.control`).
        learning_rate: float32 scalar.
        round: int32 scalar, rounds done of this stage.
    """

    model: nnx.State
    control: Any
    learning_rate: jax.Array
    round: jax.Array


class Client(NamedTuple):
    """One client of a round: its data, what it keeps, the statistics it starts from, its own mail."""

    data: ClientData
    state: Any
    statistics: nnx.State
    received: Any


class LocalUpdate(Protocol):
    """One client's round; `batches` is how the round cuts examples."""

    def __call__(
        self, shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        """Return the client's update; called without a leading axis, lifted by `client_map`."""
        ...


def plain_update(training: Training, loss: Loss) -> LocalUpdate:
    """Local steps on `loss`, nothing kept and nothing else sent: the client of FedAvg and FedProx."""

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        trained = train(
            with_statistics(shared.model, client.statistics),
            client.data,
            key,
            loss=loss,
            optimizer=training.optimizer(shared.learning_rate),
            batches=batches,
        )
        return finished(training, shared, client, trained)

    return local_update


def finished(training: Training, shared: Shared, client: Client, trained: Trained) -> ClientUpdate:
    """What a client returns after its local steps."""
    return ClientUpdate(
        delta=jax.tree.map(jnp.subtract, trained.state, shared.model),
        weight=training.weighting(client.data),
        metrics={
            "train_loss": trained.loss,
            "local_steps": trained.num_steps.astype(jnp.float32),
        },
    )
