"""Training data of one client, and its batches: the rows of each local step, planned before the first one.

    order_e = a random order of the usable rows in epoch e;    step s takes rows order_e[s B : (s + 1) B]

(McMahan et al., AISTATS 2017, ClientUpdate's batches; XCLP's A.2 of labeled and unlabeled examples; Algorithm
1 of ProtoFSSL, its episodes.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxfed.federation.cohort import Ragged, by_extent
from jaxfed.settings import Count, Ge, Note, check, check_value, when


class ClientData(NamedTuple):
    """One client's examples with the labels it trains on.

    Fields:
        x: [N, ...]; in a cohort with very unequal client sizes a `Ragged`, which is read by rows.
        label: int32 [N], given or pseudo-label; -1 keeps the example out of training.
        weight: float32 [N], in [0, 1].
        is_labeled: bool [N], the label was given.
        mask: bool [N], False on padding.
    """

    x: jax.Array | Ragged
    label: jax.Array
    weight: jax.Array
    is_labeled: jax.Array
    mask: jax.Array


def usable(data: ClientData) -> jax.Array:
    """bool [N]: examples that take part in training."""
    return data.mask & (data.label >= 0)


def is_unlabeled(data: ClientData) -> jax.Array:
    """bool [N]: the client's examples that train without a given label."""
    return usable(data) & ~data.is_labeled


def extent(data: ClientData) -> jax.Array:
    """int32 scalar: the number of leading rows that include all the client's examples."""
    return jnp.max(jnp.where(data.mask, jnp.arange(1, len(data.mask) + 1, dtype=jnp.int32), 0))


def class_counts(label: jax.Array, member: jax.Array, num_classes: int) -> jax.Array:
    """Number of members, bool [N], of each class by their labels int32 [N]: float32 [C]."""
    return jnp.sum(jnp.where(member[:, None], jax.nn.one_hot(label, num_classes), 0), axis=0)


Rows = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def _nothing(step: jax.Array, key: jax.Array) -> tuple[()]:
    del step, key
    return ()


class BatchPlan(NamedTuple):
    """The rows, and further draws, of each step.

    Fields:
        num_steps: int32 scalar.
        rows: step -> (index int32 [B], used bool [B]), of a client's examples.
        beside: step and its key -> a pytree, `Batch.beside`; the loss defines its meaning.
    """

    num_steps: jax.Array
    rows: Rows
    beside: Callable[[jax.Array, jax.Array], Any] = _nothing


BatchScheme = Literal["joint", "paired"]  # in a config; methods build the others themselves
OwnScheme = Literal["episodes", "beside_all"]


@dataclass(frozen=True)
class Batches:
    """Batching of a client's examples; shapes are the same for all clients.

    Attributes:
        scheme: "joint": every epoch is one pass over all usable examples in a new random order,
            `size` at a time. "paired": B = B_L u B_U of XCLP's A.2, with b = min(`size`, number of labels)
            labeled and r b unlabeled examples, r = `unlabeled_ratio`, 1 in the paper. An epoch is one
            pass over the unlabeled examples in random order; the labeled ones repeat in another order. With
            labels only, B = B_L and an epoch is a pass over them. Without labels the paper's |B_U| = 0
            has no meaning: B is then `(1 + r) size` unlabeled examples, as in the authors' code. (An
            epoch's last, incomplete batch next to labels is left out there; here it has fewer rows.)
            "beside_all" (SemiFL): an epoch is one pass over the usable examples of weight above 0, `size` at
            a time; each batch then holds `size` of all usable ones, drawn with replacement.
        size: examples per batch ("joint"), or the most labeled examples per batch ("paired").
        epochs: E.
        steps: if not 0, every client takes this many steps, whatever the number of its examples; the E
            orders of its epochs repeat (FLamby's `num_updates`).
        unlabeled_ratio: r, for "paired".
        episodes: sizes, for "episodes": every step draws a new episode, E of them per round. A client
            without labels takes no step.
    """

    scheme: Literal[BatchScheme, OwnScheme]
    size: int
    epochs: Count
    steps: Annotated[int, Ge(0), Note("0 is `epochs` epochs")] = 0
    unlabeled_ratio: Annotated[Count, when("scheme", "paired")] = 1
    episodes: Episodes | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.episodes is None:
            check_value("size", self.size, Count, owner="Batches")

    @property
    def capacity(self) -> int:
        """Rows of a batch."""
        if self.episodes is not None:
            return self.episodes.capacity
        if self.scheme == "beside_all":
            return 2 * self.size
        return (1 + self.unlabeled_ratio) * self.size if self.scheme == "paired" else self.size

    def num_steps(self, per_epoch: jax.Array) -> jax.Array:
        """A client's steps in a round, given those of one epoch; 0 without examples."""
        if self.steps:
            return jnp.where(per_epoch > 0, self.steps, 0)
        return self.epochs * per_epoch


def plan_of(data: ClientData, batches: Batches, key: jax.Array) -> BatchPlan:
    """Return the rows of each step of a client's round; `key` belongs to this client and round.

    Cost: one sort per epoch, of as many numbers as the client has rows (`Ragged`: at most four times its
    number of examples); with episodes two sorts per step.
    """
    return _PLANS[batches.scheme](data, batches, key)


def _joint(
    data: ClientData, batches: Batches, key: jax.Array, member: jax.Array | None = None
) -> BatchPlan:
    """Epochs over the examples `member`, bool [N]; None: over all usable ones."""
    member = usable(data) if member is None else member
    order = _orders(data, member, key, batches.epochs)
    count = jnp.sum(member, dtype=jnp.int32)
    per_epoch = _ceil_div(count, batches.size)
    turns = jnp.maximum(per_epoch, 1)

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        epoch, first = step // turns % batches.epochs, step % turns * batches.size
        return _cycled(order[epoch], count, first + jnp.arange(batches.size), until=count)

    return BatchPlan(batches.num_steps(per_epoch), rows)


def _paired(data: ClientData, batches: Batches, key: jax.Array) -> BatchPlan:
    labeled_key, unlabeled_key = jax.random.split(key)
    is_labeled, without_label = usable(data) & data.is_labeled, is_unlabeled(data)
    labeled = _orders(data, is_labeled, labeled_key, batches.epochs)
    unlabeled = _orders(data, without_label, unlabeled_key, batches.epochs)
    num_labeled = jnp.sum(is_labeled, dtype=jnp.int32)
    num_unlabeled = jnp.sum(without_label, dtype=jnp.int32)

    rows_labeled = jnp.minimum(batches.size, num_labeled)  # |B_L|
    ratio = batches.unlabeled_ratio
    rows_unlabeled = jnp.where(num_labeled > 0, ratio * rows_labeled, batches.capacity)  # |B_U|
    rows_unlabeled = jnp.where(num_unlabeled > 0, rows_unlabeled, 0)
    passes_labeled = _ceil_div(num_labeled, jnp.maximum(rows_labeled, 1))
    passes_unlabeled = _ceil_div(num_unlabeled, jnp.maximum(rows_unlabeled, 1))
    per_epoch = jnp.where(num_unlabeled > 0, passes_unlabeled, passes_labeled)
    turns = jnp.maximum(per_epoch, 1)
    # With labels only, a pass ends with the last of them; next to unlabeled examples they repeat.
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
        # Rows of neither part repeat the part that exists.
        take_first = in_labeled | (num_unlabeled == 0)
        return (
            jnp.where(take_first, first, second),
            jnp.where(take_first, used_first & in_labeled, used_second),
        )

    return BatchPlan(batches.num_steps(per_epoch), rows)


def _beside_all(data: ClientData, batches: Batches, key: jax.Array) -> BatchPlan:
    order_key, draw_key = jax.random.split(key)
    is_one = usable(data)
    firsts = _joint(data, batches, order_key, is_one & (data.weight > 0))
    everyone = _in_front(data, is_one, jnp.arange)
    num_all = jnp.sum(is_one, dtype=jnp.int32)

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        index, used = firsts.rows(step)
        step_key = jax.random.fold_in(draw_key, step)
        drawn = jax.random.randint(step_key, (batches.size,), 0, jnp.maximum(num_all, 1))
        return jnp.concatenate([index, everyone[drawn]]), jnp.concatenate([used, used])

    return firsts._replace(rows=rows)


def _episodes(data: ClientData, batches: Batches, key: jax.Array) -> BatchPlan:
    sizes = batches.episodes
    assert sizes is not None
    is_labeled, without_label = usable(data) & data.is_labeled, is_unlabeled(data)

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        step_key = jax.random.fold_in(key, step)

        def drawn(length: int) -> tuple[jax.Array, jax.Array]:
            front = slice(length)
            labeled, others = is_labeled[front], without_label[front]
            return draw(step_key, data.label[front], labeled, others, sizes)

        return by_extent(data.x, extent(data), drawn)

    return BatchPlan(batches.num_steps(jnp.any(is_labeled).astype(jnp.int32)), rows)


def _in_front(
    data: ClientData, member: jax.Array, rank_of: Callable[[int], jax.Array]
) -> jax.Array:
    """int32 [N]: the members, bool [N], in the order of their ranks, then the others.

    `rank_of(length)` ranks the first `length` rows; the rank of a row does not depend on `length`.
    """
    capacity = len(member)

    def order(length: int) -> jax.Array:
        rank = rank_of(length).astype(jnp.float32)
        front = jnp.argsort(jnp.where(member[:length], rank, jnp.inf)).astype(jnp.int32)
        return jnp.concatenate([front, jnp.arange(length, capacity, dtype=jnp.int32)])

    return by_extent(data.x, extent(data), order)


def _orders(data: ClientData, member: jax.Array, key: jax.Array, epochs: int) -> jax.Array:
    """int32 [E, N]: the members in a random order for each epoch, then the others.

    A member's rank depends on its own number and the key only, not on N: JAX's (partitionable)
    generator gives longer arrays the same beginning.
    """
    epoch_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(epochs))

    def order(epoch_key: jax.Array) -> jax.Array:
        return _in_front(data, member, lambda length: jax.random.uniform(epoch_key, (length,)))

    if isinstance(data.x, Ragged):  # one at a time: `vmap` would sort at all lengths
        return jax.lax.map(order, epoch_keys)
    return jax.vmap(order)(epoch_keys)


def _cycled(
    order: jax.Array, count: jax.Array, position: jax.Array, *, until: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The examples at these positions of an endlessly repeated order, and which come before `until`."""
    return order[position % jnp.maximum(count, 1)], (position < until) & (count > 0)


def _ceil_div(count: jax.Array, size: jax.Array | int) -> jax.Array:
    return (count + size - 1) // size


_PLANS: dict[str, Callable[[ClientData, Batches, jax.Array], BatchPlan]] = {
    "joint": _joint,
    "paired": _paired,
    "episodes": _episodes,
    "beside_all": _beside_all,
}


class Episodes(NamedTuple):
    """Sizes of an episode: a batch drawn anew in every step (prototypical networks: Snell et al., NIPS 2017).

        support S_k, query Q_k   n_S and n_Q of the client's labeled examples of class k
        unlabeled query Q_U      n_U of its unlabeled examples, all drawn without replacement

    A step's rows stand in this order, class after class: S_1 .. S_C, Q_1 .. Q_C, Q_U. A loss knows a row's
    role by its position. If a client has fewer examples, the spare rows hold other examples of it and are not
    used.
    """

    num_classes: int
    support: int = 1
    query: int = 2
    unlabeled: int = 100

    @property
    def capacity(self) -> int:
        """Rows of a step."""
        return self.num_classes * (self.support + self.query) + self.unlabeled

    @property
    def ends(self) -> tuple[int, int]:
        """Row numbers at which the support ends, and the labeled query."""
        first = self.num_classes * self.support
        return first, first + self.num_classes * self.query


def draw(
    key: jax.Array,
    label: jax.Array,
    is_labeled: jax.Array,
    is_unlabeled: jax.Array,
    sizes: Episodes,
) -> tuple[jax.Array, jax.Array]:
    """Draw one episode of one client: index int32 [B] into its examples, and used bool [B].

    Support and labeled query are drawn from the examples `is_labeled`, bool [N], the unlabeled query from
    those `is_unlabeled`. Cost: two sorts of N numbers.
    """
    labeled_key, unlabeled_key = jax.random.split(key)
    # Class by class, within a class in random order; others behind them.
    group = jnp.where(is_labeled, label, sizes.num_classes)
    order = jnp.lexsort((jax.random.uniform(labeled_key, label.shape), group)).astype(jnp.int32)
    counts = jax.nn.one_hot(group, sizes.num_classes, dtype=jnp.int32).sum(axis=0)
    starts, num_labeled = jnp.cumsum(counts) - counts, jnp.sum(counts)

    def of_each_class(first: int, number: int) -> tuple[jax.Array, jax.Array]:
        rank = first + jnp.arange(number)[None]
        position = starts[:, None] + jnp.minimum(rank, jnp.maximum(counts[:, None] - 1, 0))
        used = rank < counts[:, None]
        return order[jnp.minimum(position, jnp.maximum(num_labeled - 1, 0))].ravel(), used.ravel()

    shuffled = jnp.where(is_unlabeled, jax.random.uniform(unlabeled_key, label.shape), jnp.inf)
    rank = jnp.arange(sizes.unlabeled)
    num_unlabeled = jnp.sum(is_unlabeled, dtype=jnp.int32)
    unlabeled = jnp.where(
        num_unlabeled > 0,
        jnp.argsort(shuffled).astype(jnp.int32)[rank % jnp.maximum(num_unlabeled, 1)],
        order[rank % jnp.maximum(num_labeled, 1)],
    )
    parts = (
        of_each_class(0, sizes.support),
        of_each_class(sizes.support, sizes.query),
        (unlabeled, rank < num_unlabeled),
    )
    index, used = (jnp.concatenate(column) for column in zip(*parts, strict=True))
    return index, used
