"""Local training of the received model, written for ONE client.

    w <- server's model;   for each step:  w <- w - optimizer(grad loss(w, batch) + correction)

Everything is inside jit. The number of steps is the client's own (a loop of that many turns, not a
padded scan), so a client's result depends on its own examples and key alone, bit for bit, however
much padding a cohort carries; a client without usable examples returns its model untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.training.local.batches import Batches, BatchPlan, after_steps, plan_of
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.local.losses import Batch, Loss, taken

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
    """Train a model on one client's examples.

    Args:
        state: the model as received; also the loss's anchor.
        data: the client's examples, [N, ...].
        key: the client's typed key of this round.
        loss: see `jaxfed.training.local.losses`.
        optimizer: gradient -> update.
        batches: the batching of examples. The last, incomplete batch of an epoch is filled with unused
            examples of the same epoch. A `BatchPlan` gives the rows of each step itself.
        optimizer_state: the state that the optimizer resumes from; None: it starts afresh.
        correction: added to every gradient (of the form of the parameters); None adds nothing.
        after_step: changes the parameters after each step (a moving average, say); None leaves them.
        gradient: makes the function that computes a step's gradient; None: of `loss` over the batch.

    Cost: one sort of N numbers per epoch in addition to the steps.
    """
    plan_key, step_key = jax.random.split(key)
    plan = batches
    if not isinstance(plan, BatchPlan):
        plan = plan_of(data, plan, plan_key)
    start, statistics = nnx.split_state(state, nnx.Param, ...)
    make = gradient or _batch_gradient

    def step_of(plan: BatchPlan) -> Callable[[jax.Array, Any], Any]:
        gradient_of = make(loss, anchor=state, data=data, plan=plan, key=step_key)

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

        return step

    if optimizer_state is None:
        optimizer_state = optimizer.init(start)
    carry = (start, statistics, optimizer_state, jnp.float32(0))
    parameters, statistics, optimizer_state, total = after_steps(plan, step_key, step_of, carry)
    return Trained(
        nnx.merge_state(parameters, statistics),
        plan.num_steps,
        total / jnp.maximum(plan.num_steps, 1).astype(jnp.float32),
        optimizer_state,
    )


def _batch_gradient(
    loss: Loss, *, anchor: nnx.State, data: ClientData, plan: BatchPlan, key: jax.Array
) -> GradientOf:
    """Parameters, statistics, step -> loss, statistics and gradient of the batch."""

    def gradient_of(
        parameters: nnx.State, statistics: nnx.State, number: jax.Array
    ) -> tuple[jax.Array, nnx.State, nnx.State]:
        index, used = plan.rows(number)
        batch_key = jax.random.fold_in(key, number)
        batch = batch_of(data, index, used)._replace(beside=plan.beside(number, batch_key))

        def objective(parameters: nnx.State) -> tuple[jax.Array, nnx.State]:
            value, moved = loss(
                nnx.merge_state(parameters, rebuilt(statistics)),
                anchor,
                batch,
                batch_key,
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
