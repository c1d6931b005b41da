"""One client's round: the data it receives, the interface of a local update, and its result."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.training.local.batches import Batches
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.local.local_update import AfterStep, ClientUpdate, MakeGradient, Trained, train
from jaxfed.training.local.losses import Loss
from jaxfed.training.local.plan import BatchPlan
from jaxfed.training.server.server_state import with_statistics
from jaxfed.training.specification import Training


class Shared(NamedTuple):
    """Data that all clients of a round receive alike.

    Fields:
        model: the server's parameters and statistics.
        control: defined by the method (`ServerState.control`).
        learning_rate: float32 scalar.
        round: int32 scalar, rounds done in this stage.
    """

    model: nnx.State
    control: Any
    learning_rate: jax.Array
    round: jax.Array


class Client(NamedTuple):
    """One client of a round.

    Fields:
        data: its examples.
        state: its state between rounds, defined by the method.
        statistics: the running statistics it starts from.
        received: the server's message to this client alone.
        optimizer_state: the state its optimizer resumes from; None if the optimizer starts afresh.
    """

    data: ClientData
    state: Any
    statistics: nnx.State
    received: Any
    optimizer_state: Any = None


class LocalUpdate(Protocol):
    """One client's round; `batches` is the round's batching of examples."""

    def __call__(
        self, shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        """Return the client's update; called without a leading axis, lifted by `client_map`."""
        ...


class AfterMean(Protocol):
    """A client's upload after it received the round's mean; written for one client, as `LocalUpdate`."""

    def __call__(
        self, model: nnx.State, data: ClientData, key: jax.Array, /
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Return the upload, and its bytes, {kind of message: int32 scalar}."""
        ...


def plain_update(training: Training, loss: Loss) -> LocalUpdate:
    """Local steps on `loss`, without client state or further messages: the client of FedAvg and FedProx."""

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        trained = local_steps(training, shared, client, key, loss=loss, batches=batches)
        return finished(training, shared, client, trained)

    return local_update


def local_steps(
    training: Training,
    shared: Shared,
    client: Client,
    key: jax.Array,
    *,
    loss: Loss,
    batches: Batches | BatchPlan,
    start: nnx.State | None = None,
    correction: nnx.State | None = None,
    after_step: AfterStep | None = None,
    gradient: MakeGradient | None = None,
) -> Trained:
    """Take a client's local steps; its optimizer resumes or starts afresh (`LocalTraining.client_optimizer`).

    Args:
        training: the training specification.
        shared: the data that all clients receive.
        client: the client.
        key: the client's, for this round.
        loss: the loss to minimize.
        batches: the round's batching, or a plan of each step's rows.
        start: the model it starts from; None: the one received, with the client's own statistics.
        correction: see `jaxfed.training.local.local_update.train`.
        after_step: see there.
        gradient: see there.
    """
    kept = client.optimizer_state
    return train(
        with_statistics(shared.model, client.statistics) if start is None else start,
        client.data,
        key,
        loss=loss,
        optimizer=training.local.optimizer(shared.learning_rate),
        batches=batches,
        optimizer_state=None if kept is None else at_rate(kept, shared.learning_rate),
        correction=correction,
        after_step=after_step,
        gradient=gradient,
    )


def at_rate(state: optax.OptState, learning_rate: jax.Array) -> optax.OptState:
    """Set the round's learning rate in an optimizer state that holds one (`optax.inject_hyperparams`)."""
    if not optax.tree_utils.tree_get_all_with_path(state, "learning_rate"):
        return state
    return optax.tree_utils.tree_set(state, learning_rate=learning_rate)


def finished(training: Training, shared: Shared, client: Client, trained: Trained) -> ClientUpdate:
    """Return the client's update after its local steps: model change, weight and metrics."""
    return ClientUpdate(
        delta=jax.tree.map(jnp.subtract, trained.state, shared.model),
        weight=training.server.weigh(client.data),
        metrics={
            "train_loss": trained.loss,
            "local_steps": trained.num_steps.astype(jnp.float32),
        },
        optimizer_state=() if client.optimizer_state is None else trained.optimizer_state,
    )
