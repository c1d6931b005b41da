"""FedDB: labels and weights corrected for a class prior.

q_k is a model's mean prediction over weak views of client k's unlabeled examples: an estimate of the label
prior that the model has learned. p_G is the prediction of the received model w
(`jaxfed.training.local.consistency`).

    client   p' = (p_G / q_k) / sum_c (p_G / q_k)_c,      q_k by w
             term = 1[max p' >= tau] CE(f(strong(x)), argmax p')
    server   q_k by the trained w_k;   w <- sum_k a_k w_k,
             a on the simplex for a small  L(a) = 1/C |sum_k a_k q_k - 1/C|^2:
             a <- 1/K;   100 times   a <- softmax(a - 1.9 (grad L(a) + 0.9 a))

The server's steps are SGD with rate 1, weight decay 0.9 and Nesterov momentum 0.9. As in the authors' code,
each step has a new optimizer, so momentum is only the factor 1.9. The limit a minimizes
1.9 L(a) + 0.355 |a|^2 + sum_k a_k log a_k. Equal weights minimize the last two terms, so L(a) never exceeds
L at equal weights. With many clients, a stays near them.

Differences from the authors' code, and details that the paper leaves open:

  * In the code each step moves q_k halfway to its batch's mean prediction; a client sends the last q_k. Here
    it sends the trained model's mean prediction over all its unlabeled examples.
  * The code labels once, without augmentation, and takes one step an epoch, on a batch of all labeled
    examples and one of all sure ones; a client without sure ones has batches of 64. Here the same frozen
    model labels the weak view of each step, and the term of an unsure example is 0.
  * The code clips gradients to norm 1; this does not. Its server momentum is `training.server_optimizer`.
  * For a client without unlabeled examples, q_k is over its labeled ones; in rounds on given labels alone
    that is every client. `training.weighting` only decides which clients are in the mean.

Labels at the server: the server trains on them before the clients, which train on the term alone.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.settings import NotNegative, Share
from jaxfed.training.aggregate import Aggregate, weighted_sum
from jaxfed.training.local.batches import is_unlabeled, usable
from jaxfed.training.local.consistency import Term, Views, confident
from jaxfed.training.local.losses import Pointwise, mean_where
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.round import aggregate_of
from jaxfed.training.round.two_views import two_view_training, two_view_update
from jaxfed.training.specification import Training

_STEPS, _RATE, _MOMENTUM, _DECAY = 100, 1.0, 0.9, 0.9


@method(
    title="FedDB",
    cites="Zhu, Liu, Wu, Tang, Tang, Niu, Su, IJCAI 2024",
    leaves="its model's change, and its mean prediction (C numbers)",
    on_network=True,
    pseudo_label="unlabeled",
    labels_at=EVERYWHERE,
    two_views=True,
)
def feddb(
    *, training: Training, threshold: Share = 0.95, unlabeled_weight: NotNegative = 1.0
) -> FederatedAlgorithm:
    """FedAvg with FedDB's labels and aggregation weights.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        threshold: tau in [0, 1]: an example counts if its debiased confidence is at least tau.
        unlabeled_weight: weight of the pseudo-labels' term.

    Cost: FixMatch's, plus one forward pass over the weak view, and two over a client's data in each round.
    """
    training = training.with_server(aggregate=debiased_mean(aggregate_of(training)))
    pointwise = training.local.pointwise
    update = two_view_update(
        lambda client: debiased(mean_prediction(client, client.model), threshold, pointwise),
        asks_received=True,
        unlabeled_weight=unlabeled_weight,
    )

    def local_update(client: ClientRound) -> ClientUpdate:
        local = update(client)
        q = mean_prediction(client, jax.tree.map(jnp.add, client.shared.model, local.delta))
        return local._replace(
            weight=jnp.where(local.weight > 0, q, 0),
            sent={"mean_predictions": jnp.int32(4 * len(q))},
        )

    return two_view_training(training, local_update)


def mean_prediction(client: ClientRound, model: nnx.State) -> jax.Array:
    """q_k, float32 [C], of the client's unlabeled examples, else of its labeled ones; 0 without any."""
    unlabeled = is_unlabeled(client.data)
    member = jnp.where(jnp.any(unlabeled), unlabeled, usable(client.data))
    return mean_where(client.predictions_by(model), member)


def debiased(q: jax.Array, threshold: float, pointwise: Pointwise) -> Term:
    """FedDB's term of an unlabeled example, with the prior q, float32 [C]."""
    term = confident(threshold, labeled_by="received", pointwise=pointwise)

    def of_views(views: Views) -> jax.Array:
        scaled = views.received / jnp.maximum(q, jnp.finfo(jnp.float32).tiny)[None]
        return term(views._replace(received=scaled / jnp.sum(scaled, axis=-1, keepdims=True)))

    return of_views


def debiased_mean(inner: Aggregate) -> Aggregate:
    """The server's step. Its weights are q_k, [K, C]; the rows of clients outside the mean are 0.

    `inner` aggregates with the weights a.
    """

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Any
    ) -> tuple[nnx.State, Any]:
        return inner.apply(model, deltas, aggregation_weights(weights), state)

    return Aggregate(inner.init, apply)


def aggregation_weights(q: jax.Array) -> jax.Array:
    """Weights a, float32 [K], from q, [K, C]; 0 where a row is 0."""
    is_in = jnp.any(q > 0, axis=1)
    classes = q.shape[1]

    def step(_: jax.Array, a: jax.Array) -> jax.Array:
        excess = weighted_sum(a, q) - 1 / classes
        slope = 2 / classes * weighted_sum(excess, q.T) + _DECAY * a
        moved = a - _RATE * (1 + _MOMENTUM) * slope
        return jnp.where(is_in, jax.nn.softmax(jnp.where(is_in, moved, -1e30)), 0)

    counts = is_in.astype(jnp.float32)
    equal = counts / jnp.maximum(jnp.sum(counts), 1)
    return jax.lax.fori_loop(0, _STEPS, step, equal)
