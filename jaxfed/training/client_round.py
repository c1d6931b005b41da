"""One client's round: what it receives, what a method's local update is, and what it returns."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.training.batches import Batches
from jaxfed.training.client_data import ClientData
from jaxfed.training.ingredients import Training
from jaxfed.training.local_update import AfterStep, ClientUpdate, MakeGradient, Trained, train
from jaxfed.training.losses import Loss
from jaxfed.training.plan import Plan
from jaxfed.training.server_state import with_statistics


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
    """One client of a round.

    Fields:
        data: its examples.
        state: what a method lets it keep.
        statistics: the running statistics it starts from.
        received: its own mail.
        optimizer_state: what its optimizer goes on from; None where that starts afresh.
    """

    data: ClientData
    state: Any
    statistics: nnx.State
    received: Any
    optimizer_state: Any = None


class LocalUpdate(Protocol):
    """One client's round; `batches` is how the round cuts examples."""

    def __call__(
        self, shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        """Return the client's update; called without a leading axis, lifted by `client_map`."""
        ...


class AfterMean(Protocol):
    """What a client uploads once it has the round's mean; one client's view, as `LocalUpdate`."""

    def __call__(
        self, model: nnx.State, data: ClientData, key: jax.Array, /
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Return the upload, and {kind of message: int32 scalar}, the bytes it is sent in."""
        ...


def plain_update(training: Training, loss: Loss) -> LocalUpdate:
    """Local steps on `loss`, nothing kept and nothing else sent: the client of FedAvg and FedProx."""

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
    batches: Batches | Plan,
    start: nnx.State | None = None,
    correction: nnx.State | None = None,
    after_step: AfterStep | None = None,
    gradient: MakeGradient | None = None,
) -> Trained:
    """A client's local steps with `training.optimizer`, which goes on or starts afresh as `training` has it.

    Args:
        training: the ingredients.
        shared: what all clients receive.
        client: the client.
        key: the client's, of this round.
        loss: what it minimizes.
        batches: how the round cuts examples, or what each step takes.
        start: the model it starts from; None: the one received, with the client's own statistics.
        correction: see `jaxfed.training.local_update.train`.
        after_step: see there.
        gradient: see there.
    """
    kept = client.optimizer_state
    return train(
        with_statistics(shared.model, client.statistics) if start is None else start,
        client.data,
        key,
        loss=loss,
        optimizer=training.optimizer(shared.learning_rate),
        batches=batches,
        optimizer_state=None if kept is None else at_rate(kept, shared.learning_rate),
        correction=correction,
        after_step=after_step,
        gradient=gradient,
    )


def at_rate(state: optax.OptState, learning_rate: jax.Array) -> optax.OptState:
    """A kept state with the round's rate, where it holds one of its own (`optax.inject_hyperparams`)."""
    if not optax.tree_utils.tree_get_all_with_path(state, "learning_rate"):
        return state
    return optax.tree_utils.tree_set(state, learning_rate=learning_rate)


def finished(training: Training, shared: Shared, client: Client, trained: Trained) -> ClientUpdate:
    """What a client returns after its local steps."""
    return ClientUpdate(
        delta=jax.tree.map(jnp.subtract, trained.state, shared.model),
        weight=training.weighting(client.data),
        metrics={
            "train_loss": trained.loss,
            "local_steps": trained.num_steps.astype(jnp.float32),
        },
        optimizer_state=() if client.optimizer_state is None else trained.optimizer_state,
    )
