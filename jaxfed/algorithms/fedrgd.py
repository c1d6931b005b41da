"""FedRGD: consistent views, and models averaged in random groups; also called SSFL.

Labels at the server (the paper). Server and clients train in parallel, then models are averaged in S random
groups G_i. f_k is client k's network; weak and strong views are as in FixMatch:

    server     w_s <- w;     steps on  mean CE(f_s(weak(x)), y)
    client     w_k <- w_i of its group;   steps on  mean 1[max p >= tau] CE(f_k(strong(u)), argmax p),
                             p = softmax(f_k(weak(u))) held fixed
    groups     w_i <- (w_s + sum_{k in G_i} w_k) / (|G_i| + 1),    w <- 1/S sum_i w_i

Labels at clients (the authors' code, and the setting in which ProtoFSSL quotes it): no w_s; the client's loss
has CE on its own labels beside the term above, both of weight 1.

The paper trains with group normalization in place of batch normalization (the model's `norm`), S = 2, 16
steps a round (`training.local_steps`), SGD with Nesterov's momentum 0.9. Groups are drawn anew in every round
out of the clients that take part and have examples, sizes equal to within one, and start from the group
models of the round before. So it is in the code, whose groups are ranks that go on with their model whichever
client's data they are given next.

Not reproduced are the code's loss, which has the weak view's logits on both sides, its one pair of ranks that
belongs to both groups and averages between them, and its rate over warm-up steps. A client that is unsure of
everything counts with the model that it received. `training.server_optimizer` has no say: the step is the
means'.

A round's metrics have `gradient_diversity`, sum |g_k|^2 / |sum g_k|^2, with g_k the change from w of all who
count, so that what groups differ by is in it; S = 1 is FedAvg's.

A client receives its group's model.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.random_streams import Stream
from jaxfed.settings import Count, Share
from jaxfed.training.aggregate import Aggregate, in_all, weighted_sum
from jaxfed.training.local.consistency import confident, consistency
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Messages
from jaxfed.training.round.round import federated_training, weighted_mean
from jaxfed.training.server_state import ServerState, client_draws, stacked_for, with_statistics
from jaxfed.training.specification import Training


@method(
    title="FedRGD",
    cites="Zhang, Yang, Yao, Yan, Gonzalez, Ramchandran, Mahoney, IEEE Big Data 2021",
    leaves="its model's change",
    pseudo_label="unlabeled",
    labels_at=EVERYWHERE,
    two_views=True,
    unread=("aggregate",),
    weighting="uniform",
)
def fedrgd(
    *, training: Training, num_groups: Count = 2, threshold: Share = 0.95
) -> FederatedAlgorithm:
    """FedRGD, in the scenario that `training.server.examples` says.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        num_groups: S, number of groups whose models are averaged.
        threshold: tau, confidence from which an unlabeled example counts.

    Cost: the server keeps S models, and a round makes one for each client of its group's.
    """
    term = confident(threshold, pointwise=training.local.pointwise)
    loss = consistency(training.model, training.local, term)
    training = training.with_server(aggregate=group_means(num_groups))

    def server_update(client: ClientRound) -> ClientUpdate:
        update = client.update(client.steps(training.loss))
        return update._replace(weight=update.weight * jnp.ones(num_groups))

    def local_update(client: ClientRound) -> ClientUpdate:
        group = client.received
        start = group.model
        if training.local.batch_statistics != "averaged":  # the group's go with its model
            start = with_statistics(start, nnx.split_state(client.model, nnx.Param, ...)[1])
        update = client.update(client.steps(loss, start=start))
        return update._replace(weight=update.weight * group.member)

    plain = federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        messages=Messages(group_mail),
        server_update=server_update,
        server_joins=True,
    )

    @wraps(plain.round)
    def round(state: ServerState, cohort: Cohort, key: jax.Array) -> tuple[ServerState, Metrics]:
        after, metrics = plain.round(state, cohort, key)
        return after, {**metrics, "gradient_diversity": after.optimizer.diversity}

    return plain._replace(round=round)


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
    """The server's step: w_i = sum_k p_ki w_k / sum_k p_ki and w = 1/S sum_i w_i; weights p are [K, S].

    p_ki is client k's weight in its own group and 0 in others; a server that trains counts in every group.
    A group without any positive weight keeps its model and is left out of the mean of groups.
    """

    def init(model: nnx.State, key: jax.Array) -> Groups:
        own_key = jax.random.fold_in(key, Stream.MODEL_GROUPS)
        return Groups(stacked_for(num_groups, model), own_key, jnp.float32(0))

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Any
    ) -> tuple[nnx.State, Groups]:
        moved = jax.vmap(weighted_mean, in_axes=(None, 1))(deltas, weights)
        anyone = jnp.any(weights > 0, axis=0)

        def of_groups(old: jax.Array, start: jax.Array, change: jax.Array) -> jax.Array:
            has_clients = anyone.reshape(-1, *(1,) * start.ndim)
            return jnp.where(has_clients, start[None] + change, old)

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
    squares = together = jnp.float32(0)
    for leaf in jax.tree.leaves(nnx.filter_state(deltas, nnx.Param)):
        squared_norms = jnp.sum(jnp.square(leaf), axis=tuple(range(1, leaf.ndim)))  # |g_k|^2
        squares += weighted_sum(included, squared_norms)
        together += jnp.sum(jnp.square(weighted_sum(included, leaf)))
    return jnp.where(squares > 0, squares / jnp.maximum(together, jnp.finfo(jnp.float32).tiny), 0)


def group_mail(state: ServerState, cohort: Cohort, communication: Communication) -> Membership:
    """Each client's group and its model, [K, ...]; this model replaces the one that all receive."""
    del communication
    has_examples = jnp.any(jnp.asarray(cohort.mask), axis=1)  # others are in no group
    ids = jnp.where(has_examples, jnp.asarray(cohort.client_id), -1)
    return _memberships(state.optimizer, state.round, ids)


@jax.jit
def _memberships(groups: Groups, number: jax.Array, client_id: jax.Array) -> Membership:
    num_groups = len(jax.tree.leaves(groups.model)[0])
    key = jax.random.fold_in(groups.key, number)
    draws = client_draws(key, client_id)
    rank = jnp.argsort(jnp.argsort(jnp.where(client_id >= 0, draws, jnp.inf)))
    group = rank % num_groups
    model = jax.tree.map(lambda leaf: leaf[group], groups.model)
    return Membership(model, jax.nn.one_hot(group, num_groups, dtype=jnp.float32))
