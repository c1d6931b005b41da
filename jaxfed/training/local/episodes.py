"""Episodes: batches drawn anew in every step, a few examples of each class and some without a label.

    support S_k, query Q_k   n_S and n_Q of the client's labeled examples of class k, without replacement
    unlabeled query Q_U      n_U of its unlabeled examples, without replacement

(Prototypical networks: Snell, Swersky, Zemel, NIPS 2017; Algorithm 1 of ProtoFSSL.) A step's rows stand in
this order, class after class: S_1 .. S_C, Q_1 .. Q_C, Q_U. A loss knows a row's role by its position. If a
client has fewer examples, the spare rows hold other examples of it and are not used.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

Rows = TypeVar("Rows")


class Episodes(NamedTuple):
    """The sizes of an episode.

    Fields:
        num_classes: C.
        support: n_S, of each class.
        query: n_Q, of each class.
        unlabeled: n_U.
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
    """Draw one episode of one client.

    Args:
        key: of the step.
        label: int32 [N], classes; used only where `is_labeled`.
        is_labeled: bool [N], examples that support and labeled query are drawn from.
        is_unlabeled: bool [N], examples that the unlabeled query is drawn from.
        sizes: of the episode.

    Returns:
        index int32 [B] into the client's examples, and used bool [B].

    Cost: two sorts of N numbers.
    """
    labeled_key, unlabeled_key = jax.random.split(key)
    # Class by class, within a class in random order; others behind them.
    place = jnp.where(is_labeled, label, sizes.num_classes)
    order = jnp.lexsort((jax.random.uniform(labeled_key, label.shape), place)).astype(jnp.int32)
    counts = jax.nn.one_hot(place, sizes.num_classes, dtype=jnp.int32).sum(axis=0)
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
