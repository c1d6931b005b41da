"""Networks as learners: every client has its own network, and all of them train in one program.

    for each of the round's steps:   w <- w - optimizer(grad (own batch + lambda public batch))

with the loss of `jaxfed.learners.public_loss`. Parameters, BatchNorm statistics and optimizers are per
client; nothing is averaged.

A round of FedCT is a handful of steps, far less than an epoch. So a client's epochs span its rounds: step s,
counted over all rounds, takes batch s mod E of epoch s div E, with E batches per epoch. Every epoch has the
client's labeled examples in a new random order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort, padded
from jaxfed.federation.execution.client_map import jitted
from jaxfed.federation.ragged import Ragged, apart, joined
from jaxfed.kernels.arrays import permuted
from jaxfed.kernels.devices import in_batches
from jaxfed.learners.learner import (
    SPOILED,
    Fitted,
    Learner,
    Predict,
    Taught,
    check_classes,
    check_taught,
)
from jaxfed.learners.public_loss import PUBLIC_LOSSES, public_rows, taught_loss
from jaxfed.random_streams import Stream
from jaxfed.settings import Count, NotNegative, OneOf, hinted
from jaxfed.training.local.batches import BatchPlan
from jaxfed.training.local.client_data import ClientData, usable
from jaxfed.training.local.local_update import Trained, train
from jaxfed.training.local.losses import Loss, weighted_loss
from jaxfed.training.round.client_round import at_rate
from jaxfed.training.server.client_rows import (
    CohortRows,
    gather,
    of_cohort,
    rows_of_clients,
    scatter,
    stacked_for,
    written_back,
)
from jaxfed.training.server.server_state import client_keys, is_finite
from jaxfed.training.specification import UNREAD_BY_LEARNERS, Training, num_outputs

_AHEAD = 32  # steps whose rows are drawn at once
_BATCH = 500  # examples at a time in prediction


class NetworkState(NamedTuple):
    """The networks of all clients.

    Fields:
        model: parameters and running statistics, [M, ...].
        optimizer: states that the clients' optimizers resume from, [M, ...].
        order: typed keys [M], for shuffling own examples.
        steps: int32 [M], local steps done.
        fits: int32 [M], rounds that the client trained in; the clock of its learning rate.
    """

    model: nnx.State
    optimizer: Any
    order: jax.Array
    steps: jax.Array
    fits: jax.Array


class _Client(NamedTuple):
    """One client of a fit, or all of them."""

    state: NetworkState
    data: ClientData
    key: jax.Array


class _Trained(NamedTuple):
    state: NetworkState
    loss: jax.Array
    steps: jax.Array
    is_whole: jax.Array


@hinted
def network(
    *,
    training: Training,
    public_batch_size: Count = 64,
    pseudo_weight: NotNegative = 1.0,
    public_loss: Annotated[str, OneOf(PUBLIC_LOSSES)] = "label",
) -> Learner:
    """Return the learner with a separate network at each client, `training.model`, trained by mini-batches.

    Args:
        training: the training specification; used are `model`, `initial_model`, `execution`, and of `local`
            optimizer, learning_rate (by a client's rounds), pointwise, augment and the size of batches.
            Without an `initial_model` each client's network is drawn independently.
        public_batch_size: |P|, public examples in a step.
        pseudo_weight: lambda, weight of the public batch's loss; the client's own batch has weight 1.
        public_loss: d: "label", the loss of an example (`LocalTraining.pointwise`) with consensus labels;
            "soft_cross_entropy" and "squared_distance" to probabilities; "score_l1" to scores. The last
            three learn from `Taught.soft`.

    A round continues each client's network and optimizer. A step is a mini-batch. A client without own
    labels trains on public ones alone. A client with neither
    takes no step, and has no vote unless there is an `initial_model`. If a network is not finite after a
    round, it counts as failed, and its client keeps the previous one. A network with finite parameters whose
    scores are nan or infinite has no valid answers: `SPOILED` in place of a class, else nan.

    Raises:
        UsageError: a value that is not allowed, or that no network reads; in `fit`, a soft loss without soft
            targets.

    Cost: a step is a forward and a backward pass over both batches. A program is compiled for each number of
    clients, for fits with and without public labels, and for all clients in order, whose states are not
    copied. With `map_apart` one program is compiled per core, and states are copied in and out.
    """
    training = training.read_by("network", UNREAD_BY_LEARNERS)
    networks = _Networks(training, public_batch_size, pseudo_weight, public_loss)
    return Learner(
        networks.init,
        networks.fit,
        predict=answering(training, largest, -1, SPOILED),
        predict_proba=answering(training, jax.nn.softmax, 0, np.nan),
        scores=answering(training, lambda logits: logits, 0, np.nan),
        renewed=networks.renewed,
        name_of=lambda client: "network",
    )


@dataclass(frozen=True, eq=False)
class _Networks:
    """The learner's functions; attributes as the keywords of `network`."""

    training: Training
    public_batch_size: int
    pseudo_weight: float
    public_loss: str

    def init(self, key: jax.Array, federation: Federation) -> NetworkState:
        """Return all clients' networks before their first step.

        Raises:
            UsageError: the network has not one output for each class.
        """
        model = self.training.model
        form = jax.eval_shape(model.init, key)
        check_classes("the network", num_outputs(model.apply, form, federation), federation)
        self.training.local.check_examples(federation.x)
        state: NetworkState = rows_of_clients(
            federation.num_clients,
            lambda numbers: self.of_clients(key, numbers),
            self.training.execution.host,
        )
        return state

    def of_clients(self, key: jax.Array, client_id: np.ndarray) -> NetworkState:
        """Return the state of these clients alone before their first step."""
        numbers = jnp.asarray(client_id)
        models, optimizer = self.new_networks(key, numbers)
        orders = jax.random.fold_in(key, Stream.BATCH_ORDER)
        none = jnp.zeros(len(client_id), jnp.int32)
        order = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(orders, numbers)
        return NetworkState(models, optimizer, order, steps=none, fits=none)

    def new_networks(self, key: jax.Array, numbers: jax.Array) -> tuple[nnx.State, Any]:
        """Networks and optimizers of these clients before their first step."""
        training = self.training
        models = stacked_for(len(numbers), training.initial_model)
        if training.initial_model is None:
            keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers)
            models = jax.jit(jax.vmap(training.model.init))(keys)
        parameters = nnx.split_state(models, nnx.Param, ...)[0]
        return models, jax.vmap(training.local.optimizer(jnp.float32(0)).init)(parameters)

    def renewed(self, state: NetworkState, client_id: Array, key: jax.Array) -> NetworkState:
        """Return the state with new networks for these clients."""
        ids = jnp.asarray(client_id)
        models, optimizer = self.new_networks(key, ids)
        none = jnp.zeros(len(ids), jnp.int32)
        new = NetworkState(models, optimizer, state.order[ids], none, none)
        return scatter(state, ids, new)

    def fit(
        self, state: NetworkState, cohort: Cohort, taught: Taught | None, key: jax.Array, steps: int
    ) -> Fitted:
        """Take the cohort's local steps; report networks that these have spoiled."""
        if taught is not None:
            check_taught(taught, cohort)
        cohort = padded(cohort, self.training.execution.clients_multiple)
        shared = _on_device(taught, self.public_loss), jnp.int32(steps)
        is_everyone = np.array_equal(cohort.client_id, np.arange(len(state.fits)))
        ids = np.asarray(cohort.client_id)
        trained = self.program(of_cohort(state, ids), cohort, shared, key, is_everyone=is_everyone)
        trained = trained._replace(state=written_back(state, trained.state, ids))
        ids, loss, taken, is_whole = jax.device_get(
            (cohort.client_id, trained.loss, trained.steps, trained.is_whole)
        )
        failed = {
            int(client): f"parameters that are nan or infinite after {steps} steps"
            for client in ids[(ids >= 0) & ~is_whole]
        }
        worked = (ids >= 0) & is_whole & (taken > 0)
        metrics = {"train_loss": float(loss[worked].mean())} if worked.any() else {}
        return Fitted(trained.state, failed, {**metrics, "clients": int(worked.sum())})

    @cached_property
    def program(self) -> Callable[..., _Trained]:
        """`fit_cohort`, compiled whole, or by `map_apart` for each core."""
        if self.training.execution.map_apart is not None:
            return self.fit_cohort
        return jitted(self.fit_cohort, static_argnames="is_everyone")

    @cached_property
    def fit_clients(self) -> Callable[..., _Trained]:
        """`fit_one` of all clients of a cohort."""
        return (self.training.execution.map_apart or self.training.execution.map_clients)(
            self.fit_one
        )

    def fit_cohort(
        self,
        state: NetworkState,
        cohort: Cohort,
        shared: Any,
        key: jax.Array,
        *,
        is_everyone: bool,
    ) -> _Trained:
        """Local steps of a cohort, or of all clients in order, `is_everyone`."""
        examples, x = apart(cohort.x if isinstance(cohort.x, Ragged) else jnp.asarray(cohort.x))
        y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
        data = ClientData(x, y, (y >= 0).astype(jnp.float32), y >= 0, mask)
        # For large networks, copying states in and out takes as long as two steps.
        is_all = is_everyone and not isinstance(state.fits, CohortRows)
        before = state if is_all else gather(state, cohort.client_id)
        clients = _Client(before, data, client_keys(key, cohort.client_id))
        trained = self.fit_clients((shared, examples), clients)
        if is_all:
            return trained
        return trained._replace(state=scatter(state, cohort.client_id, trained.state))

    def fit_one(self, shared: Any, client: _Client) -> _Trained:
        """Local steps of one client."""
        training = self.training
        (public, most_steps), examples = shared
        state = client.state
        data = client.data._replace(x=joined(examples, client.data.x))
        learns = jnp.any(usable(data))
        if public is not None:
            learns |= jnp.any(public.counts(self.public_loss))
        loss = self.loss(public)
        steps = jnp.where(learns, most_steps, 0)
        rate = training.local.rate_in(state.fits)
        plan = own_batches(
            data, state.order, size=training.local.batches.size, done=state.steps, steps=steps
        )
        if public is not None:
            drawn = public_rows(
                public, batch_size=self.public_batch_size, public_loss=self.public_loss
            )
            plan = plan._replace(beside=lambda step, key: drawn(key))
        trained = train(
            state.model,
            data,
            client.key,
            loss=loss,
            optimizer=training.local.optimizer(rate),
            batches=plan,
            optimizer_state=at_rate(state.optimizer, rate),
        )
        return _outcome(state, trained)

    def loss(self, public: Taught | None) -> Loss:
        """The loss of own labels, and of the targets of public examples."""
        training = self.training
        if public is None:
            return weighted_loss(
                training.model, augment=training.local.augment, pointwise=training.local.pointwise
            )
        return taught_loss(
            training.model,
            public,
            pseudo_weight=self.pseudo_weight,
            public_loss=self.public_loss,
            augment=training.local.augment,
            pointwise=training.local.pointwise,
        )


def largest(logits: jax.Array) -> jax.Array:
    """The class with the largest score, int32 [...]."""
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def answering(
    training: Training,
    of_logits: Callable[[jax.Array], jax.Array],
    without: int,
    spoiled: float,
) -> Predict:
    """Return the prediction by this function of logits, for all clients in one program.

    Args:
        training: its model.
        of_logits: float32 [..., C] -> the answer.
        without: answer of a client without a network.
        spoiled: answer for logits that are nan or infinite.

    A state has the fields `model` and `fits` of `NetworkState`.
    """

    @jitted
    def answers(models: nnx.State, is_there: jax.Array, x: jax.Array) -> jax.Array:
        logits = training.execution.map_clients(lambda x, one: training.model.apply(one, x))(
            x, models
        )
        logits = logits.astype(jnp.float32)
        answer = of_logits(logits)
        is_whole = (
            jnp.isfinite(logits).all(axis=-1).reshape(*logits.shape[:2], *(1,) * (answer.ndim - 2))
        )
        answer = jnp.where(is_whole, answer, jnp.asarray(spoiled, answer.dtype))
        is_there = is_there.reshape(-1, *(1,) * (answer.ndim - 1))
        return jnp.moveaxis(jnp.where(is_there, answer, without), 0, 1)

    def predict(state: Any, client_id: Array, x: Array) -> np.ndarray:
        ids = np.asarray(client_id)
        missing = -len(ids) % training.execution.clients_multiple
        rows = np.concatenate([ids, np.full(missing, -1, ids.dtype)])
        models, fits = gather((state.model, state.fits), rows)
        is_there = (fits > 0) | (training.initial_model is not None)
        answer = in_batches(lambda batch: answers(models, is_there, batch), x, _BATCH)
        return np.ascontiguousarray(np.moveaxis(answer, 1, 0)[: len(ids)])

    return predict


def own_batches(
    data: ClientData, key: jax.Array, *, size: int, done: jax.Array, steps: jax.Array
) -> BatchPlan:
    """Return the rows of one client's next steps, from its own usable examples.

    Args:
        data: the client's examples, [N, ...]; padding and unlabeled ones change nothing.
        key: typed, the client's own, the same in all rounds.
        size: examples per batch; the last batch of an epoch is filled with unused examples.
        done: int32 scalar, steps in all rounds before.
        steps: int32 scalar, steps of this round.

    Cost: one stable sort of N flags per round, and one call of `permuted` per 32 steps.
    """
    is_own = usable(data)
    own = jnp.argsort(~is_own, stable=True).astype(jnp.int32)
    count = jnp.sum(is_own, dtype=jnp.int32)
    there = jnp.maximum(count, 1)
    per_epoch = (there + size - 1) // size

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        number = done + step
        position = number % per_epoch * size + jnp.arange(size, dtype=jnp.int32)
        epoch_key = jax.random.fold_in(key, number // per_epoch)
        return own[permuted(epoch_key, position % there, there)], position < count

    return BatchPlan(steps, rows, ahead=_AHEAD)


def _outcome(before: NetworkState, trained: Trained) -> _Trained:
    """A client's state after its steps, or the one before if these have spoiled the network."""
    is_whole = is_finite(trained.state)
    after = before._replace(
        model=trained.state,
        optimizer=trained.optimizer_state,
        steps=before.steps + trained.num_steps,
        fits=before.fits + jnp.minimum(trained.num_steps, 1),
    )
    learnt = is_whole & (trained.num_steps > 0)
    state = jax.tree.map(lambda new, old: jnp.where(learnt, new, old), after, before)
    return _Trained(state, trained.loss, trained.num_steps, is_whole)


def _on_device(taught: Taught | None, public_loss: str) -> Taught | None:
    if taught is None:
        return None
    if public_loss == "label":
        taught = taught._replace(soft=None)
    elif taught.soft is None:
        raise UsageError(
            f"public_loss={public_loss!r}: needs soft targets, Taught.soft; without them use 'label'"
        )
    return jax.tree.map(jnp.asarray, taught)
