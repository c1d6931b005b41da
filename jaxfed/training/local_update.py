"""Local training: what one client does with the model it is sent, written for ONE client.

    w <- server's model;   for each step:  w <- w - optimizer(grad loss(w, batch) + correction)

Everything is inside jit. The number of steps is the client's own (a loop of that many turns, not a
padded scan), so a client's result depends on its own examples and key alone, bit for bit, however
much padding a cohort carries; a client without usable examples returns its model untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.training.episodes import Episodes, draw
from jaxfed.training.losses import Batch, Loss, taken
from jaxfed.training.plan import Plan, after_steps

Scheme = Literal["joint", "paired"]  # of a config; methods of episodes make them themselves
Optimizer = Callable[[jax.Array], optax.GradientTransformation]  # of the round's learning rate
# parameters, step (from 0) and number of steps of the round -> parameters
AfterStep = Callable[[nnx.State, jax.Array, jax.Array], nnx.State]


# parameters, statistics, step -> loss, statistics, gradient, number of rows that count (float32)
GradientOf = Callable[
    [nnx.State, nnx.State, jax.Array], tuple[jax.Array, nnx.State, nnx.State, jax.Array]
]
MakeGradient = Callable[..., GradientOf]  # of a loss, an anchor, data, a plan and a key


class ClientData(NamedTuple):
    """One client's examples with the labels it trains on.

    Fields:
        x: [N, ...].
        label: int32 [N], given or pseudo-label; -1 keeps the example out of training.
        weight: float32 [N], in [0, 1].
        is_labeled: bool [N], the label was given.
        mask: bool [N], False on padding.
    """

    x: jax.Array
    label: jax.Array
    weight: jax.Array
    is_labeled: jax.Array
    mask: jax.Array


class ClientUpdate(NamedTuple):
    """What a client returns.

    Fields:
        delta: the client's model minus the server's, parameters and statistics.
        weight: float32 scalar in its mean; 0 leaves the client out. [S], one each, where there are S means.
        metrics: name -> float32 scalar.
        client_state: what the client keeps for its next round (); stays with the client.
        correction: what else goes to the server's mean (SCAFFOLD's change of control variate); ().
        upload: what the server keeps as this client sends it (prototypes); ().
        sent: {kind of message: int32 scalar}, bytes sent beside model and control; with "parameters" those in
            which the parameters of `delta` are sent, all of them otherwise.
        optimizer_state: what the client's optimizer goes on from in its next round; (), or `Training` has it
            start afresh.
    """

    delta: nnx.State
    weight: jax.Array
    metrics: dict[str, jax.Array]
    client_state: Any = ()
    correction: Any = ()
    upload: Any = ()
    sent: Any = ()
    optimizer_state: Any = ()


class Trained(NamedTuple):
    """After local steps: the model, their number (int32), their mean loss (float32), the optimizer."""

    state: nnx.State
    num_steps: jax.Array
    loss: jax.Array
    optimizer_state: optax.OptState


@dataclass(frozen=True)
class Batches:
    """How a client cuts its examples into batches; shapes are the same for all clients.

    Attributes:
        scheme: "joint": every epoch is one pass over all usable examples in a new random order,
            `size` at a time. "paired": B = B_L u B_U of XCLP's A.2, b = min(`size`, number of labels)
            of labeled and r b of unlabeled examples, r = `unlabeled_ratio`, 1 in the paper; an epoch is
            one pass over the unlabeled in random order, the labeled ones are cycled in another. With
            labels only, B = B_L and an epoch is a pass over them. Without labels the paper's |B_U| = 0
            has no meaning: B is then `(1 + r) size` unlabeled examples, as in the authors' code. (An
            epoch's last, incomplete batch beside labels, left out there, is one of fewer rows here.)
            "beside_all" (SemiFL): an epoch is one pass over the usable examples of weight above 0, `size` at
            a time; behind them in a batch stand `size` of all usable ones, drawn with replacement.
        size: examples a batch ("joint") or labeled examples a batch at most ("paired").
        epochs: E.
        steps: if not 0, a client takes so many steps whatever the number of its examples, and its epochs
            repeat in their E orders (FLamby's `num_updates`).
        unlabeled_ratio: r, of "paired".
        episodes: sizes, of "episodes": every step is an episode drawn anew, E of them a round. A client
            without labels takes no step.
    """

    scheme: Scheme | Literal["episodes", "beside_all"]
    size: int
    epochs: int
    steps: int = 0
    unlabeled_ratio: int = 1
    episodes: Episodes | None = None

    @property
    def capacity(self) -> int:
        """Rows of a batch."""
        if self.episodes is not None:
            return self.episodes.capacity
        if self.scheme == "beside_all":
            return 2 * self.size
        return (1 + self.unlabeled_ratio) * self.size if self.scheme == "paired" else self.size

    def num_steps(self, per_epoch: jax.Array) -> jax.Array:
        """A client's steps in a round, if an epoch is so many; none without examples."""
        if self.steps:
            return jnp.where(per_epoch > 0, self.steps, 0)
        return self.epochs * per_epoch


def train(
    state: nnx.State,
    data: ClientData,
    key: jax.Array,
    *,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    batches: Batches | Plan,
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
        loss: see `jaxfed.training.losses`.
        optimizer: gradient -> update.
        batches: how examples become batches. The last, incomplete batch of an epoch is filled with
            examples of the same epoch that count for nothing. A `Plan` says itself what each step takes.
        optimizer_state: what the optimizer goes on from; None: it starts afresh.
        correction: added to every gradient (of the form of the parameters); None adds nothing.
        after_step: changes the parameters after each step (a moving average, say); None leaves them.
        gradient: makes what steps descend; None: the gradient of `loss` over a step's batch.

    Cost: a sort of N numbers an epoch beside the steps themselves.
    """
    plan_key, step_key = jax.random.split(key)
    plan = batches
    if not isinstance(plan, Plan):
        plan = _PLANS[plan.scheme](data, plan, plan_key)
    start, statistics = nnx.split_state(state, nnx.Param, ...)
    make = gradient or _batch_gradient

    def step_of(plan: Plan) -> Callable[[jax.Array, Any], Any]:
        gradient_of = make(loss, anchor=state, data=data, plan=plan, key=step_key)

        def step(number: jax.Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            parameters, statistics, optimizer_state, total = carry
            value, statistics, slope, _ = gradient_of(parameters, statistics, number)
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


def mean_gradient(
    state: nnx.State, data: ClientData, key: jax.Array, *, loss: Loss, batches: Batches
) -> nnx.State:
    """The loss's gradient at one point over a client's examples: one epoch without a step.

    The mean over an epoch's batches, each counting by its used rows, of the form of the parameters;
    zeros for a client without examples. With "joint" batches and a loss that is a mean over rows this is
    the gradient over all the client's examples.
    """
    plan_key, step_key = jax.random.split(key)
    plan = _PLANS[batches.scheme](data, replace(batches, epochs=1, steps=0), plan_key)
    start, statistics = nnx.split_state(state, nnx.Param, ...)
    gradient_of = _batch_gradient(loss, anchor=state, data=data, plan=plan, key=step_key)

    def add(number: jax.Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        statistics, total, count = carry
        _, statistics, gradient, rows = gradient_of(start, statistics, number)
        total = jax.tree.map(lambda t, g: t + rows * g, total, gradient)
        return statistics, total, count + rows

    carry = (statistics, jax.tree.map(jnp.zeros_like, start), jnp.float32(0))
    _, total, count = jax.lax.fori_loop(0, plan.num_steps, add, carry)
    return jax.tree.map(lambda t: t / jnp.maximum(count, 1), total)


def _batch_gradient(
    loss: Loss, *, anchor: nnx.State, data: ClientData, plan: Plan, key: jax.Array
) -> GradientOf:
    """Parameters, statistics, step -> loss, statistics, gradient, and the batch's used rows."""

    def gradient_of(
        parameters: nnx.State, statistics: nnx.State, number: jax.Array
    ) -> tuple[jax.Array, nnx.State, nnx.State, jax.Array]:
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
        return value, moved, gradient, jnp.sum(used).astype(jnp.float32)

    return gradient_of


def batch_of(data: ClientData, index: jax.Array, used: jax.Array) -> Batch:
    """The batch of these rows, int32 [B], of which those count that are used, bool [B]."""
    return Batch(
        x=taken(data.x, index),
        label=jnp.maximum(data.label[index], 0),
        weight=jnp.where(used, data.weight[index], 0),
        used=used,
        is_labeled=data.is_labeled[index],
    )


def rebuilt(state: nnx.State) -> nnx.State:
    """The same state in new variables: Flax lets a module write to those of its own trace only."""
    return jax.tree.map(lambda leaf: leaf, state)


def usable(data: ClientData) -> jax.Array:
    """bool [N]: examples that take part in training."""
    return data.mask & (data.label >= 0)


def _joint(data: ClientData, batches: Batches, key: jax.Array) -> Plan:
    order = _orders(usable(data), key, batches.epochs)
    count = jnp.sum(usable(data), dtype=jnp.int32)
    per_epoch = _ceil_div(count, batches.size)
    turns = jnp.maximum(per_epoch, 1)

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        epoch, first = step // turns % batches.epochs, step % turns * batches.size
        return _cycled(order[epoch], count, first + jnp.arange(batches.size), until=count)

    return Plan(batches.num_steps(per_epoch), rows)


def _paired(data: ClientData, batches: Batches, key: jax.Array) -> Plan:
    labeled_key, unlabeled_key = jax.random.split(key)
    is_labeled = usable(data) & data.is_labeled
    is_unlabeled = usable(data) & ~data.is_labeled
    labeled = _orders(is_labeled, labeled_key, batches.epochs)
    unlabeled = _orders(is_unlabeled, unlabeled_key, batches.epochs)
    num_labeled = jnp.sum(is_labeled, dtype=jnp.int32)
    num_unlabeled = jnp.sum(is_unlabeled, dtype=jnp.int32)

    rows_labeled = jnp.minimum(batches.size, num_labeled)  # |B_L|
    ratio = batches.unlabeled_ratio
    rows_unlabeled = jnp.where(num_labeled > 0, ratio * rows_labeled, batches.capacity)  # |B_U|
    rows_unlabeled = jnp.where(num_unlabeled > 0, rows_unlabeled, 0)
    passes_labeled = _ceil_div(num_labeled, jnp.maximum(rows_labeled, 1))
    passes_unlabeled = _ceil_div(num_unlabeled, jnp.maximum(rows_unlabeled, 1))
    per_epoch = jnp.where(num_unlabeled > 0, passes_unlabeled, passes_labeled)
    turns = jnp.maximum(per_epoch, 1)
    # With labels only a pass ends with the last of them; beside unlabeled examples they go round.
    end_labeled = jnp.where(num_unlabeled > 0, jnp.iinfo(jnp.int32).max, num_labeled)
    row = jnp.arange(batches.capacity)

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        epoch, turn = step // turns % batches.epochs, step % turns
        in_labeled = row < rows_labeled
        first, used_first = _cycled(
            labeled[epoch], num_labeled, turn * rows_labeled + row, until=end_labeled
        )
        position = row - rows_labeled
        second, used_second = _cycled(
            unlabeled[epoch],
            num_unlabeled,
            turn * rows_unlabeled + jnp.maximum(position, 0),
            until=num_unlabeled,
        )
        used_second &= position < rows_unlabeled
        # Rows of neither part repeat the part that there is.
        take_first = in_labeled | (num_unlabeled == 0)
        return (
            jnp.where(take_first, first, second),
            jnp.where(take_first, used_first & in_labeled, used_second),
        )

    return Plan(batches.num_steps(per_epoch), rows)


def _beside_all(data: ClientData, batches: Batches, key: jax.Array) -> Plan:
    order_key, draw_key = jax.random.split(key)
    is_one = usable(data)
    is_first = is_one & (data.weight > 0)
    order = _orders(is_first, order_key, batches.epochs)
    everyone = jnp.argsort(~is_one, stable=True).astype(jnp.int32)
    count, num_all = (jnp.sum(member, dtype=jnp.int32) for member in (is_first, is_one))
    per_epoch = _ceil_div(count, batches.size)
    turns = jnp.maximum(per_epoch, 1)

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        epoch, first = step // turns % batches.epochs, step % turns * batches.size
        index, used = _cycled(order[epoch], count, first + jnp.arange(batches.size), until=count)
        step_key = jax.random.fold_in(draw_key, step)
        drawn = jax.random.randint(step_key, (batches.size,), 0, jnp.maximum(num_all, 1))
        return jnp.concatenate([index, everyone[drawn]]), jnp.concatenate([used, used])

    return Plan(batches.num_steps(per_epoch), rows)


def _episodes(data: ClientData, batches: Batches, key: jax.Array) -> Plan:
    sizes = batches.episodes
    assert sizes is not None
    is_labeled = usable(data) & data.is_labeled
    is_unlabeled = usable(data) & ~data.is_labeled

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        step_key = jax.random.fold_in(key, step)
        return draw(step_key, data.label, is_labeled, is_unlabeled, sizes)

    return Plan(batches.num_steps(jnp.any(is_labeled).astype(jnp.int32)), rows)


_PLANS: dict[str, Callable[[ClientData, Batches, jax.Array], Plan]] = {
    "joint": _joint,
    "paired": _paired,
    "episodes": _episodes,
    "beside_all": _beside_all,
}


def _orders(member: jax.Array, key: jax.Array, epochs: int) -> jax.Array:
    """int32 [E, N]: the members in a random order for each epoch, then the others.

    A member's place depends on its own number and the key only, not on N: JAX's (partitionable)
    generator gives longer arrays the same beginning.
    """
    epoch_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(epochs))

    def order(epoch_key: jax.Array) -> jax.Array:
        place = jax.random.uniform(epoch_key, member.shape)
        return jnp.argsort(jnp.where(member, place, jnp.inf)).astype(jnp.int32)

    return jax.vmap(order)(epoch_keys)


def _cycled(
    order: jax.Array, count: jax.Array, position: jax.Array, *, until: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The examples at these positions of an endlessly repeated order, and which come before `until`."""
    return order[position % jnp.maximum(count, 1)], (position < until) & (count > 0)


def _ceil_div(count: jax.Array, size: jax.Array | int) -> jax.Array:
    return (count + size - 1) // size
