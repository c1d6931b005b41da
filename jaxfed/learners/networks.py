"""Networks as learners: every client has its own network, and all of them train in one program.

    for each of the round's steps:   w <- w - optimizer(grad loss(w))
    loss = mean_{i in B} l(f(x_i), y_i)  +  lambda  sum_{u in P} w_u d(f(u), L_u) / sum_{u in P} w_u

Parameters, BatchNorm statistics and optimizers are per client; nothing is averaged. B is a batch of the
client's own labeled examples, P one of public examples, drawn at random (with replacement) in every step
among those that have a label and a weight above 0. With d the cross-entropy of consensus labels this is a
step of FedCT (arXiv 2310.05696, Algorithm 1, line 3, with mini-batches for D u P; B and P as large as each
other and lambda = 1 are its authors' later code); with d the squared distance of softmax f(u) to the clients'
mean answer it is one of distributed distillation (Bistritz, Mann, Bambos, NeurIPS 2020); with d a distance of
scores it is FedMD's digestion (Li, Wang, arXiv 1910.03581). Both batches go through the network together:
BatchNorm's statistics cover both, as in that code.

A round of FedCT is a handful of steps, far less than an epoch. So a client's epochs span its rounds: step s,
counted over all rounds, takes batch s mod E of epoch s div E, with E batches per epoch. Every epoch has the
client's labeled examples in a new random order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort, Ragged, apart, joined, padded
from jaxfed.federation.execution import jitted
from jaxfed.kernels.arrays import permuted
from jaxfed.kernels.devices import in_batches
from jaxfed.learners.learner import SPOILED, Fitted, Learner, Predict, PublicTargets, check_classes
from jaxfed.models.model import Model
from jaxfed.random_streams import Stream
from jaxfed.settings import Count, NotNegative, OneOf, hinted
from jaxfed.training.local.augmentation import check_levels
from jaxfed.training.local.batches import BatchPlan, ClientData, usable
from jaxfed.training.local.consistency import soft_cross_entropy
from jaxfed.training.local.local_training import Trained, train
from jaxfed.training.local.losses import (
    Augment,
    Batch,
    Loss,
    Pointwise,
    augmented_logits,
    mean_where,
    softmax_cross_entropy,
    taken,
    weighted_loss,
)
from jaxfed.training.round.client_round import at_rate
from jaxfed.training.server_state import (
    CohortRows,
    client_keys,
    gather,
    is_finite,
    of_cohort,
    rows_of_clients,
    scatter,
    stacked_for,
    written_back,
)
from jaxfed.training.specification import UNREAD_BY_LEARNERS, Training, num_outputs

_BATCH = 500  # examples at a time in prediction
SoftDistance = Callable[[jax.Array, jax.Array], jax.Array]  # logits, targets [B, C] -> [B]


def squared_distance(logits: jax.Array, target: jax.Array) -> jax.Array:
    """|softmax(logits) - z|^2, float32 [B], of logits and probabilities z [B, C]."""
    return jnp.sum(jnp.square(jax.nn.softmax(logits.astype(jnp.float32)) - target), axis=-1)


def score_l1(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Mean over the classes of |logits - z|, float32 [B], of logits and scores z [B, C]."""
    return jnp.mean(jnp.abs(logits.astype(jnp.float32) - target), axis=-1)


SOFT_DISTANCES: dict[str, SoftDistance] = {
    "soft_cross_entropy": soft_cross_entropy,
    "squared_distance": squared_distance,
    "score_l1": score_l1,
}
PUBLIC_LOSSES = ("label", *SOFT_DISTANCES)


class NetworkState(NamedTuple):
    """The networks of all clients, [M, ...]."""

    model: nnx.State  # parameters and running statistics
    optimizer: Any  # states that the clients' optimizers resume from
    order: jax.Array  # typed keys [M], for shuffling own examples
    steps: jax.Array  # int32 [M], local steps done
    fits: jax.Array  # int32 [M], rounds that the client trained in, which set its learning rate


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
            three learn from `PublicTargets.soft`.

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
    copied.
    """
    training = training.read_by(UNREAD_BY_LEARNERS)
    networks = _Networks(training, public_batch_size, pseudo_weight, public_loss)
    return Learner(
        networks.init,
        networks.fit,
        predict=answering(training, largest, -1, SPOILED),
        predict_proba=answering(training, jax.nn.softmax, 0, np.nan),
        scores=answering(training, lambda logits: logits, 0, np.nan),
    )


@dataclass(frozen=True, eq=False)
class _Networks:
    """The learner's functions; attributes as the keywords of `network`."""

    training: Training
    public_batch_size: int
    pseudo_weight: float
    public_loss: str

    def init(self, key: jax.Array, federation: Federation) -> NetworkState:
        """Return all clients' networks before their first step."""
        model = self.training.model
        form = jax.eval_shape(model.init, key)
        check_classes("the network", num_outputs(model.apply, form, federation), federation)
        local = self.training.local
        check_levels(federation, local.augment, local.strong_augment)
        make = partial(self.of_clients, key)
        state: NetworkState = rows_of_clients(federation.num_clients, make)
        return state

    def of_clients(self, key: jax.Array, client_id: np.ndarray) -> NetworkState:
        """Return the state of these clients alone before their first step."""
        training, numbers = self.training, jnp.asarray(client_id)
        each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        models = stacked_for(len(client_id), training.initial_model)
        if training.initial_model is None:
            models = jax.jit(jax.vmap(training.model.init))(each(key, numbers))
        parameters = nnx.split_state(models, nnx.Param, ...)[0]
        optimizer = jax.vmap(training.local.optimizer(jnp.float32(0)).init)(parameters)
        order = each(jax.random.fold_in(key, Stream.BATCH_ORDER), numbers)
        none = jnp.zeros(len(client_id), jnp.int32)
        return NetworkState(models, optimizer, order, steps=none, fits=none)

    def fit(
        self,
        state: NetworkState,
        cohort: Cohort,
        targets: PublicTargets | None,
        key: jax.Array,
        steps: int,
    ) -> Fitted:
        """Take the cohort's local steps; report networks that these have spoiled."""
        cohort = padded(cohort, self.training.execution.clients_multiple)
        shared = _on_device(targets, self.public_loss), jnp.int32(steps)
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
        """`fit_cohort`, compiled whole."""
        return jitted(self.fit_cohort, static_argnames="is_everyone")

    @cached_property
    def fit_clients(self) -> Callable[..., _Trained]:
        """`fit_one` of all clients of a cohort."""
        return self.training.execution.map_clients(self.fit_one)

    def fit_cohort(
        self, state: NetworkState, cohort: Cohort, shared: Any, key: jax.Array, *, is_everyone: bool
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

    def loss(self, public: PublicTargets | None) -> Loss:
        """The loss of own labels, and of the targets of public examples."""
        model, local = self.training.model, self.training.local
        if public is None:
            return weighted_loss(model, augment=local.augment, pointwise=local.pointwise)
        return distillation_loss(
            model,
            public,
            pseudo_weight=self.pseudo_weight,
            public_loss=self.public_loss,
            augment=local.augment,
            pointwise=local.pointwise,
        )


def largest(logits: jax.Array) -> jax.Array:
    """The class with the largest score, int32 [...]."""
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def answering(
    training: Training, of_logits: Callable[[jax.Array], jax.Array], without: int, spoiled: float
) -> Predict:
    """Return the prediction by a function of logits float32 [..., C], for all clients in one program.

    A state has the fields `model` and `fits` of `NetworkState`. A client without a network answers `without`,
    logits that are nan or infinite give `spoiled`.
    """

    @jitted
    def answers(models: nnx.State, has_network: jax.Array, x: jax.Array) -> jax.Array:
        logits = training.execution.map_clients(lambda x, one: training.model.apply(one, x))(
            x, models
        )
        logits = logits.astype(jnp.float32)
        answer = of_logits(logits)
        is_whole = (
            jnp.isfinite(logits).all(axis=-1).reshape(*logits.shape[:2], *(1,) * (answer.ndim - 2))
        )
        answer = jnp.where(is_whole, answer, jnp.asarray(spoiled, answer.dtype))
        has_network = has_network.reshape(-1, *(1,) * (answer.ndim - 1))
        return jnp.moveaxis(jnp.where(has_network, answer, without), 0, 1)

    def predict(state: Any, client_id: Array, x: Array) -> np.ndarray:
        ids = np.asarray(client_id)
        missing = -len(ids) % training.execution.clients_multiple
        rows = np.concatenate([ids, np.full(missing, -1, ids.dtype)])
        models, fits = gather((state.model, state.fits), rows)
        has_network = (fits > 0) | (training.initial_model is not None)
        answer = in_batches(lambda batch: answers(models, has_network, batch), x, _BATCH)
        return np.ascontiguousarray(np.moveaxis(answer, 1, 0)[: len(ids)])

    return predict


def own_batches(
    data: ClientData, key: jax.Array, *, size: int, done: jax.Array, steps: jax.Array
) -> BatchPlan:
    """Return the rows of one client's next `steps` after `done` others, from its own usable examples.

    `key` is the client's own, the same in all rounds. The last batch of an epoch is filled with unused
    examples. Cost: one stable sort of N flags per round, and one call of `permuted` per step.
    """
    is_own = usable(data)
    order = jnp.argsort(~is_own, stable=True).astype(jnp.int32)
    count = jnp.sum(is_own, dtype=jnp.int32)
    num_rows = jnp.maximum(count, 1)
    per_epoch = (num_rows + size - 1) // size

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        number = done + step
        position = number % per_epoch * size + jnp.arange(size, dtype=jnp.int32)
        epoch_key = jax.random.fold_in(key, number // per_epoch)
        return order[permuted(epoch_key, position % num_rows, num_rows)], position < count

    return BatchPlan(steps, rows)


def public_rows(
    public: PublicTargets, *, batch_size: int, public_loss: str = "label"
) -> Callable[[jax.Array], jax.Array]:
    """Return the draw of P: a step's key -> rows of U, int32 [|P|], with replacement among `counts`."""
    # Draws are ranks among the examples with a target and a weight.
    rank = jnp.cumsum(public.counts(public_loss), dtype=jnp.int32)

    def rows(key: jax.Array) -> jax.Array:
        draw_key, _ = jax.random.split(key)
        drawn = jax.random.randint(draw_key, (batch_size,), 0, jnp.maximum(rank[-1], 1))
        return jnp.searchsorted(rank, drawn, side="right").astype(jnp.int32)

    return rows


def distillation_loss(
    model: Model,
    public: PublicTargets,
    *,
    pseudo_weight: float,
    public_loss: str = "label",
    augment: Augment | None = None,
    pointwise: Pointwise = softmax_cross_entropy,
) -> Loss:
    """The loss of this file for one client, on the batches of its own examples; `Batch.beside` is P.

    A client without own labels has the second term alone, and a client without public targets the first. For
    BatchNorm, rows of the other batch then replace the missing ones.
    """
    has_public = jnp.any(public.counts(public_loss))

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        del anchor
        _, pass_key = jax.random.split(key)  # the other is for `public_rows`
        rows, has_own = batch.beside, jnp.any(batch.used)
        x = jax.lax.cond(
            has_own & has_public,
            lambda x, theirs: jnp.concatenate([x, theirs]),
            lambda x, theirs: jnp.concatenate(
                [
                    jnp.where(has_own, x, _as_many(theirs, len(x))),
                    jnp.where(has_public, theirs, _as_many(x, len(rows))),
                ]
            ),
            batch.x,
            taken(jnp.asarray(public.x), rows),
        )
        logits, state = augmented_logits(model, state, x, pass_key, augment)
        on_own, on_public = logits[: len(batch.x)], logits[len(batch.x) :]
        if public_loss == "label":
            distance = pointwise(on_public, jnp.maximum(public.label[rows], 0))
        else:
            assert public.soft is not None
            distance = SOFT_DISTANCES[public_loss](on_public, public.soft[rows])
        weight = jnp.where(has_public, public.weight[rows], 0)
        weighted = jnp.sum(weight * distance) / jnp.maximum(jnp.sum(weight), 1e-12)
        supervised = mean_where(pointwise(on_own, batch.label), batch.used)
        return supervised + pseudo_weight * weighted, state

    return loss


def _as_many(x: jax.Array, number: int) -> jax.Array:
    """Repeat the rows of x up to `number` rows."""
    return x[jnp.arange(number) % len(x)]


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


def _on_device(targets: PublicTargets | None, public_loss: str) -> PublicTargets | None:
    if targets is None:
        return None
    if public_loss == "label":
        targets = targets._replace(soft=None)
    elif targets.soft is None:
        raise UsageError(
            f"public_loss={public_loss!r}: needs soft targets, PublicTargets.soft; without them use 'label'"
        )
    return jax.tree.map(jnp.asarray, targets)
