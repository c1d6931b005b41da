"""Local training of the received model, written for ONE client.

    w <- server's model;   for each step:  w <- w - optimizer(grad loss(w, batch) + correction)

Everything is inside jit. The number of steps is the client's own (a loop of that many turns, not a
padded scan), so a client's result depends on its own examples and key alone, bit for bit, however
much padding a cohort carries; a client without usable examples returns its model untouched.

    LocalTraining(optimizer=optax.adam, batches=Batches("joint", size=10, epochs=5))    # its settings
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.cohort import Ragged, by_extent
from jaxfed.settings import Described, advice, check
from jaxfed.training.local.batches import Batches, BatchPlan, ClientData, extent, plan_of
from jaxfed.training.local.losses import (
    Augment,
    Batch,
    Loss,
    Pointwise,
    softmax_cross_entropy,
    taken,
    view,
    views,
)

if TYPE_CHECKING:
    from jaxfed.models import Model


Optimizer = Callable[[jax.Array], optax.GradientTransformation]  # by the round's learning rate
# parameters, step (from 0) and number of steps of the round -> parameters
AfterStep = Callable[[nnx.State, jax.Array, jax.Array], nnx.State]


# parameters, statistics, step -> loss, statistics, gradient
GradientOf = Callable[[nnx.State, nnx.State, jax.Array], tuple[jax.Array, nnx.State, nnx.State]]
MakeGradient = Callable[..., GradientOf]  # (loss, anchor, data, plan, key) -> gradient function


class Trained(NamedTuple):
    """Result of local steps: the model, number of steps (int32), mean loss (float32), optimizer state."""

    state: nnx.State
    num_steps: jax.Array
    loss: jax.Array
    optimizer_state: optax.OptState


def train(
    state: nnx.State,
    data: ClientData,
    key: jax.Array,
    *,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    batches: Batches | BatchPlan,
    optimizer_state: optax.OptState | None = None,
    correction: nnx.State | None = None,
    after_step: AfterStep | None = None,
    gradient: MakeGradient | None = None,
) -> Trained:
    """Train a model on one client's examples, [N, ...].

    Args:
        state: the model as received; also the loss's anchor.
        data: the client's examples.
        key: the client's typed key of this round.
        loss: see `jaxfed.training.local.losses`.
        optimizer: gradient -> update.
        batches: the batching of examples. The last, incomplete batch of an epoch is filled with unused
            examples of the same epoch. A `BatchPlan` gives the rows of each step itself.
        optimizer_state: the state that the optimizer resumes from; None: it starts afresh.
        correction: added to every gradient (of the form of the parameters); None adds nothing.
        after_step: changes the parameters after each step (a moving average, say); None leaves them.
        gradient: makes the function that computes a step's gradient; None: of `loss` over the batch.
    """
    plan_key, step_key = jax.random.split(key)
    plan = batches
    if not isinstance(plan, BatchPlan):
        plan = plan_of(data, plan, plan_key)
    start, statistics = nnx.split_state(state, nnx.Param, ...)
    gradient_of = (gradient or _batch_gradient)(
        loss, anchor=state, data=data, plan=plan, key=step_key
    )

    def step(number: jax.Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        parameters, statistics, optimizer_state, total = carry
        value, statistics, slope = gradient_of(parameters, statistics, number)
        if correction is not None:
            slope = jax.tree.map(jnp.add, slope, correction)
        updates, optimizer_state = optimizer.update(slope, optimizer_state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        if after_step is not None:
            parameters = after_step(parameters, number, plan.num_steps)
        return parameters, statistics, optimizer_state, total + value

    if optimizer_state is None:
        optimizer_state = optimizer.init(start)
    carry = (start, statistics, optimizer_state, jnp.float32(0))
    parameters, statistics, optimizer_state, total = jax.lax.fori_loop(
        0, plan.num_steps, step, carry
    )
    return Trained(
        nnx.merge_state(parameters, statistics),
        plan.num_steps,
        total / jnp.maximum(plan.num_steps, 1).astype(jnp.float32),
        optimizer_state,
    )


def _batch_gradient(
    loss: Loss, *, anchor: nnx.State, data: ClientData, plan: BatchPlan, key: jax.Array
) -> GradientOf:
    def gradient_of(
        parameters: nnx.State, statistics: nnx.State, number: jax.Array
    ) -> tuple[jax.Array, nnx.State, nnx.State]:
        index, used = plan.rows(number)
        batch_key = jax.random.fold_in(key, number)
        batch = batch_of(data, index, used)._replace(beside=plan.beside(number, batch_key))

        def objective(parameters: nnx.State) -> tuple[jax.Array, nnx.State]:
            value, moved = loss(
                nnx.merge_state(parameters, rebuilt(statistics)), anchor, batch, batch_key
            )
            return value, nnx.split_state(moved, nnx.Param, ...)[1]

        (value, moved), gradient = jax.value_and_grad(objective, has_aux=True)(parameters)
        return value, moved, gradient

    return gradient_of


def batch_of(data: ClientData, index: jax.Array, used: jax.Array) -> Batch:
    """The batch of the rows `index`, int32 [B]; rows that are not `used`, bool [B], have weight 0."""
    return Batch(
        x=taken(data.x, index),
        label=jnp.maximum(data.label[index], 0),
        weight=jnp.where(used, data.weight[index], 0),
        used=used,
        is_labeled=data.is_labeled[index],
    )


def rebuilt(state: nnx.State) -> nnx.State:
    """The same state in new variables: Flax lets a module write to variables of its own trace only."""
    return jax.tree.map(lambda leaf: leaf, state)


LEARNING_RATE = 0.1
_CONSTANT = optax.constant_schedule(LEARNING_RATE)
_BATCHES = Batches("joint", size=32, epochs=1)
_BATCHES_OF_BOTH: Any = None  # computed from `batches`
_Rate = Annotated[
    Callable[[jax.Array], jax.Array], Described("a schedule such as optax.constant_schedule(0.1)")
]


@dataclass(frozen=True, kw_only=True)
class BetweenRounds:
    """Persistence of optimizer state and BatchNorm statistics between rounds.

    Attributes:
        client_optimizer: state of clients' optimizer: 'fresh' in every round (FedAvg, most papers), or 'kept'
            by each client, across stages 1 and 2. (ProtoFSSL's code has one for all clients in turn.)
        batch_statistics: BatchNorm's running statistics, by which a model is evaluated: 'averaged' as its
            parameters are (XCLP's code), or 'static': measured by the cohort after each round (HeteroFL,
            SemiFL). Examples that fill up a last batch count, too.
    """

    client_optimizer: Literal["fresh", "kept"] = "fresh"
    batch_statistics: Literal["averaged", "static"] = "averaged"


@dataclass(frozen=True)
class LocalTraining(BetweenRounds):
    """Local steps of one client in one round: optimizer, batches, loss of an example, augmentation.

    Attributes:
        optimizer: learning rate -> the clients' optimizer.
        learning_rate: rounds done -> the round's rate, jit-traceable (`jnp.where` in place of `if`). Counted
            anew after `Training.labeled_only_rounds`.
        batches: of labeled and pseudo-labeled examples.
        labeled_batches: for rounds on given labels alone; by default `batches`.
        pointwise: l(logits, label), from which `Training.loss` and methods' own losses are built.
        augment: random changes of a batch that keep its classes; `Training.loss` includes them.
        strong_augment: stronger ones, for methods that compare the two.
    """

    optimizer: Annotated[Optimizer, Described("a function such as optax.adam")] = optax.sgd
    learning_rate: _Rate = _CONSTANT
    batches: Batches = _BATCHES
    labeled_batches: Batches = _BATCHES_OF_BOTH
    pointwise: Annotated[
        Pointwise, Described("a function of logits and labels, such as softmax_cross_entropy")
    ] = softmax_cross_entropy
    augment: Augment | None = None
    strong_augment: Augment | None = None

    def __post_init__(self) -> None:
        check(self)
        try:
            jax.eval_shape(self.rate_in, jax.ShapeDtypeStruct((), jnp.int32))
        except (TypeError, ValueError) as error:
            wrong = f"gives no rate for a traced round: {' '.join(str(error).split())[:300]}"
            raise self._refused(wrong, "learning_rate", advice(_Rate)) from error
        if self.labeled_batches is None:
            object.__setattr__(self, "labeled_batches", self.batches)

    def rate_in(self, stage_round: jax.Array) -> jax.Array:
        """Return the learning rate after so many rounds of the stage, a float32 scalar; jit-traceable."""
        return jnp.float32(self.learning_rate(stage_round.astype(jnp.float32)))

    def rate_of(self, stage_round: int) -> np.float32:
        """Return the same on the host, as an argument of programs that do not have it as a constant."""
        return np.float32(self._rate(stage_round))

    @cached_property
    def _rate(self) -> Callable[[int], jax.Array]:
        return jax.jit(self.rate_in)

    def require_two_views(self, method: str) -> None:
        """Raise a UsageError without a strong augmentation, which this method requires."""
        if self.strong_augment is None:
            wrong = f"{method!r} compares two views of an example"
            raise self._refused(wrong, "strong_augment", "give a strong augmentation")

    def two_views(self, keys: Sequence[jax.Array] | jax.Array, x: jax.Array) -> jax.Array:
        """Return the weak view of a batch and then the strong one, [2 B, ...]; each has a key."""
        return views((self.augment, self.strong_augment), keys, x)

    def require_fresh_optimizers(self, why: str) -> None:
        """Raise a UsageError, opened by `why`, unless clients' optimizers start anew in each round."""
        if self.client_optimizer == "kept":
            raise self._refused(why, "client_optimizer", "use 'fresh'")

    def require_averaged_statistics(self, where: str) -> None:
        """Raise a UsageError if clients measure the new model's statistics; `where` they do not."""
        if self.batch_statistics == "static":
            raise self._refused(
                f"nothing is measured {where}", "batch_statistics", "use 'averaged'"
            )

    def _refused(self, wrong: str, key: str, allowed: str) -> UsageError:
        value = getattr(self, key)
        return UsageError(wrong, key=key, owner="LocalTraining", value=value, allowed=allowed)


def measured_statistics(
    model: Model,
    state: nnx.State,
    x: jax.Array | Ragged,
    mask: jax.Array,
    key: jax.Array,
    *,
    batch_size: int,
) -> nnx.State:
    """BatchNorm's static statistics: means over a client's batches of those that each has under `state`.

    A layer moves its running statistics by r <- m r + (1 - m) s, s the batch's and m its momentum.
    Two calls with r = 0 and r = 1 on one batch give m, and then r = 0 on any batch gives s. So every
    model whose statistics are running means can be measured from outside (Diao et al., ICLR 2021,
    Section 3; their cumulative average).

    Args:
        model: its `train_apply` is called; dropout is on, as in training.
        state: parameters to measure; its statistics are ignored.
        x: [N, ...], examples; the valid ones, by `mask` bool [N], come first.
        mask: False on padding.
        key: typed key of the dropout.
        batch_size: B. The client's first examples fill the last batch: its statistics count them, its weight
            does not. The statistics of a client without examples are zeros.
    """
    parameters, statistics = nnx.split_state(state, nnx.Param, ...)
    zeros = jax.tree.map(jnp.zeros_like, statistics)
    count = jnp.sum(mask, dtype=jnp.int32)

    def moved(start: nnx.State, number: jax.Array) -> tuple[nnx.State, jax.Array]:
        position = number * batch_size + jnp.arange(batch_size)
        batch = taken(x, position % jnp.maximum(count, 1))
        _, after = model.train_apply(
            rebuilt(nnx.merge_state(parameters, start)), batch, jax.random.fold_in(key, number)
        )
        share = jnp.sum(position < count) / jnp.maximum(count, 1)
        return nnx.split_state(after, nnx.Param, ...)[1], share.astype(jnp.float32)

    ones = jax.tree.map(jnp.ones_like, statistics)
    momentum = jax.tree.map(
        jnp.subtract, moved(ones, jnp.int32(0))[0], moved(zeros, jnp.int32(0))[0]
    )

    def add(number: jax.Array, total: nnx.State) -> nnx.State:
        after, share = moved(zeros, number)
        return jax.tree.map(lambda t, r, m: t + share * r / (1 - m), total, after, momentum)

    return jax.lax.fori_loop(0, (count + batch_size - 1) // batch_size, add, zeros)


_AT_ONCE = 256


def client_logits(
    model: Model, state: nnx.State, data: ClientData, key: jax.Array, weak: Augment | None
) -> jax.Array:
    """Logits float32 [N, C] for each of the client's examples, on one weak view; 0 on padding behind them."""

    def classify(number: jax.Array) -> jax.Array:
        x = view(weak, jax.random.fold_in(key, number), taken(data.x, number[None]))
        return model.apply(state, x)[0].astype(jnp.float32)

    def of_length(length: int) -> jax.Array:
        numbers = jnp.arange(length)
        logits = jax.lax.map(classify, numbers, batch_size=min(_AT_ONCE, length))
        return jnp.pad(logits, ((0, len(data.mask) - length), (0, 0)))

    return by_extent(data.x, extent(data), of_length)
