"""Grouping-based averaging (Zhang et al., IEEE Big Data 2021): several means in place of one.

    w_i = sum_k p_ki w_k / sum_k p_ki,    w = 1/S sum_i w_i

The clients of a round are divided at random into S groups, sizes equal to within one; p_ki is client k's
weight in its own group and 0 in others. A server that trains counts in every group, with the weight of a
client that has its examples. Groups are drawn anew in every round. The members of group i train from the last
round's w_i, whether or not they took part before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.training.server.aggregate import Aggregate, in_all, weighted_mean, weighted_sum
from jaxfed.training.server.client_rows import stacked_for
from jaxfed.training.server.server_state import ServerState, client_draws


class Groups(NamedTuple):
    """State that the server keeps in place of an optimizer's.

    Fields:
        model: w_i, [S, ...].
        key: typed; groups are drawn from it.
        diversity: float32, gradient diversity of the last round.
    """

    model: nnx.State
    key: jax.Array
    diversity: jax.Array


class Membership(NamedTuple):
    """Message to one client: its group's model, and the one-hot number of its group, float32 [S]."""

    model: nnx.State
    member: jax.Array


def group_means(num_groups: int) -> Aggregate:
    """The server's step; weights are [K, S].

    A group without any positive weight keeps its model and is left out of the mean of groups.
    """

    def init(model: nnx.State) -> Groups:
        return Groups(stacked_for(num_groups, model), jax.random.key(0), jnp.float32(0))

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Any
    ) -> tuple[nnx.State, Groups]:
        moved = jax.vmap(weighted_mean, in_axes=(None, 1))(deltas, weights)
        anyone = jnp.any(weights > 0, axis=0)

        def of_groups(old: jax.Array, start: jax.Array, change: jax.Array) -> jax.Array:
            is_there = anyone.reshape(-1, *(1,) * start.ndim)
            return jnp.where(is_there, start[None] + change, old)

        groups = jax.tree.map(of_groups, state.model, model, moved)
        mean = weighted_mean(groups, anyone.astype(jnp.float32))
        mean = jax.tree.map(lambda new, old: jnp.where(jnp.any(anyone), new, old), mean, model)
        return mean, Groups(groups, state.key, gradient_diversity(deltas, in_all(weights) > 0))

    return Aggregate(init, apply)


def gradient_diversity(deltas: nnx.State, counts: jax.Array) -> jax.Array:
    """sum_k |g_k|^2 / |sum_k g_k|^2 of parameter changes [K, ...], over the k with `counts`, bool [K].

    Between 1/K, where all changes are equal, and infinity; 0 without any change.
    """
    included = counts.astype(jnp.float32)
    leaves = jax.tree.leaves(nnx.filter_state(deltas, nnx.Param))
    squares = sum(
        (weighted_sum(included, _squares(leaf)) for leaf in leaves),
        jnp.float32(0),
    )
    together = sum(
        (jnp.sum(jnp.square(weighted_sum(included, leaf))) for leaf in leaves),
        jnp.float32(0),
    )
    return jnp.where(squares > 0, squares / jnp.maximum(together, jnp.finfo(jnp.float32).tiny), 0)


def _squares(stacked: jax.Array) -> jax.Array:
    """|x_k|^2 over all but the leading axis."""
    return jnp.sum(jnp.square(stacked), axis=tuple(range(1, stacked.ndim)))


def group_mail(state: ServerState, cohort: Cohort, communication: Communication) -> Membership:
    """Each client's group and its model, [K, ...]; this model replaces the one that all receive."""
    del communication
    return _memberships(state.optimizer, state.round, jnp.asarray(cohort.client_id))


@jax.jit
def _memberships(groups: Groups, number: jax.Array, client_id: jax.Array) -> Membership:
    num_groups = len(jax.tree.leaves(groups.model)[0])
    key = jax.random.fold_in(groups.key, number)
    draws = client_draws(key, client_id)
    rank = jnp.argsort(jnp.argsort(jnp.where(client_id >= 0, draws, jnp.inf)))
    group = rank % num_groups
    model = jax.tree.map(lambda leaf: leaf[group], groups.model)
    return Membership(model, jax.nn.one_hot(group, num_groups, dtype=jnp.float32))
