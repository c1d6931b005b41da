"""One client's round: the data it receives, the interface of a local update, and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.federation.communication import num_bytes_of
from jaxfed.random_streams import Stream
from jaxfed.training.local.batches import Batches, BatchPlan, ClientData, is_unlabeled
from jaxfed.training.local.local_training import (
    AfterStep,
    MakeGradient,
    Optimizer,
    Trained,
    client_logits,
    train,
)
from jaxfed.training.local.losses import Loss
from jaxfed.training.specification import Training


class Shared(NamedTuple):
    """Data that all clients of a round receive alike; `round` is the number of rounds done in this stage."""

    model: nnx.State
    control: Any
    learning_rate: jax.Array
    round: jax.Array


class ClientUpdate(NamedTuple):
    """Result of one client's round.

    Fields:
        delta: the client's model minus the server's, parameters and statistics.
        weight: float32 scalar, the client's weight in the server's mean; 0 leaves it out. [S] for S means.
        metrics: name -> float32 scalar.
        client_state: the client's state for its next round; () if it has none. It stays with the client.
        correction: further terms of the server's mean (SCAFFOLD's change of control variate); ().
        upload: values that the server stores per client (prototypes); ().
        sent: {kind of message: int32 scalar}, bytes sent beside model and control. An entry "parameters" is
            the size of the parameters of `delta` as they are sent; without it they are sent whole.
        optimizer_state: the state that the client's optimizer resumes from in its next round; () if
            `Training` lets it start afresh.
    """

    delta: nnx.State
    weight: jax.Array
    metrics: dict[str, jax.Array]
    client_state: Any = ()
    correction: Any = ()
    upload: Any = ()
    sent: Any = ()
    optimizer_state: Any = ()


class ClientRound(NamedTuple):
    """One client's round: the argument of a local update, which makes a `ClientUpdate` of it.

    Fields:
        training: the training specification.
        shared: the data that all clients receive.
        key: typed; this client's in this round.
        batches: the round's batching of examples.
        data: its examples.
        state: its state between rounds, defined by the method.
        received: the server's message to this client alone.
        optimizer_state: the state its optimizer resumes from; None if the optimizer starts afresh.
    """

    training: Training
    shared: Shared
    key: jax.Array
    batches: Batches
    data: ClientData
    state: Any
    received: Any
    optimizer_state: Any = None

    @property
    def model(self) -> nnx.State:
        """The received model."""
        return self.shared.model

    def predictions(self) -> tuple[jax.Array, jax.Array]:
        """Return the received model's probabilities on one weak view, and which examples are unlabeled.

        They are float32 [N, C] and bool [N]; the view's key is one that no step uses. Cost: one forward pass
        over the client's data.
        """
        return self.predictions_by(self.model), is_unlabeled(self.data)

    def predictions_by(self, state: nnx.State) -> jax.Array:
        """Return the probabilities of a model on the weak view of `predictions`."""
        model, weak = self.training.model, self.training.local.augment
        key = jax.random.fold_in(self.key, Stream.BEFORE_STEPS)
        return jax.nn.softmax(client_logits(model, state, self.data, key, weak))

    def steps(
        self,
        loss: Loss,
        *,
        start: nnx.State | None = None,
        batches: Batches | BatchPlan | None = None,
        optimizer: Optimizer | None = None,
        correction: nnx.State | None = None,
        after_step: AfterStep | None = None,
        gradient: MakeGradient | None = None,
    ) -> Trained:
        """Take local steps; the optimizer resumes or starts afresh (`LocalTraining.client_optimizer`).

        `start`, `batches` and `optimizer` are by default the received model and those of the round;
        `correction`, `after_step` and `gradient` as in `jaxfed.training.local.local_training.train`.
        """
        kept, rate = self.optimizer_state, self.shared.learning_rate
        return train(
            self.model if start is None else start,
            self.data,
            self.key,
            loss=loss,
            optimizer=(optimizer or self.training.local.optimizer)(rate),
            batches=self.batches if batches is None else batches,
            optimizer_state=None if kept is None else at_rate(kept, rate),
            correction=correction,
            after_step=after_step,
            gradient=gradient,
        )

    def update(
        self, trained: Trained, *, metrics: dict[str, jax.Array] | None = None, **parts: Any
    ) -> ClientUpdate:
        """Return the update after local steps: model change, weight, metrics and further fields, `parts`."""
        steps = trained.num_steps.astype(jnp.float32)
        return ClientUpdate(
            delta=jax.tree.map(jnp.subtract, trained.state, self.shared.model),
            weight=self.training.server.weigh(self.data),
            metrics={"train_loss": trained.loss, "local_steps": steps, **(metrics or {})},
            optimizer_state=() if self.optimizer_state is None else trained.optimizer_state,
            **parts,
        )

    def model_sent_if(self, is_sent: jax.Array) -> dict[str, jax.Array]:
        """Return `ClientUpdate.sent` of a client that sends its parameters only if `is_sent`, bool scalar."""
        num_bytes = num_bytes_of(nnx.filter_state(self.shared.model, nnx.Param))
        return {"parameters": jnp.where(is_sent, jnp.int32(num_bytes), 0)}


# Written for one client, lifted by `client_map`.
LocalUpdate = Callable[[ClientRound], ClientUpdate]

# A client's upload after it received the round's mean: model, data, key -> upload, and its bytes by kind of
# message, {kind: int32 scalar}. Written for one client, too.
AfterMean = Callable[[nnx.State, ClientData, jax.Array], tuple[Any, dict[str, jax.Array]]]


def plain_update(loss: Loss) -> LocalUpdate:
    """Local steps on `loss`, without client state or further messages: the client of FedAvg and FedProx."""
    return lambda client: client.update(client.steps(loss))


def at_rate(state: optax.OptState, learning_rate: jax.Array) -> optax.OptState:
    """Set the round's learning rate in an optimizer state that holds one (`optax.inject_hyperparams`)."""
    if not optax.tree_utils.tree_get_all_with_path(state, "learning_rate"):
        return state
    return optax.tree_utils.tree_set(state, learning_rate=learning_rate)
