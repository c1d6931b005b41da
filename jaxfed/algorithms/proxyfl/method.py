"""ProxyFL: the classifier's rows stand for classes, as proxies.

The server aggregates as in FedAvg, and then tunes the classifier's rows W_c against the clients' rows w_mc
(`jaxfed.algorithms.proxyfl.proxy_tuning`, eq. 2):

    W <- W - eta grad sum_c 1/M sum_m -log softmax_c'(-|W_c - w_mc'|)_c           Q steps, from the mean

Client m receives this model, and a prior of classes P (`jaxfed.algorithms.proxyfl.class_prior`, eq. 5).
p_G is the prediction of the received model, frozen, and p_L that of the model in training
(`jaxfed.algorithms.proxyfl.proxy_pool`):

    L = 1/|B_L| sum_{B_L} l(f(weak(x)), y)
        + unlabeled_weight 1/|B_hc| sum_{B_hc} l(f(strong(u)), argmax p_G)                              (9)
        + contrast_weight [ 1/|B_hc| sum_{B_hc} l_i + 1/|B_lc| sum_{B_lc} l_i ]                         (8)

B_hc are a batch's unlabeled examples with max p_G >= tau, B_lc its other unlabeled ones. l_i pulls the
features of example i towards the row of its class or, if p_G is not sure, towards the rows of all classes
that are likelier under p_G than under P. Its negatives are the batch's examples that share no class with i.

Details that the paper leaves open:

  * The distance is Euclidean, and (2) has the mean over clients in place of the sum, so that steps do not
    grow with their number. Tuning moves the kernel's columns; the bias stays the mean.
  * The weights p_L in s_i are probabilities, held fixed. An example whose set of classes is empty does not
    count.
  * Clients compute their class shares P_m before their first step, by the received model on one weak view.

Differences from the authors' code:

  * The code's prior is a moving average: 0.99 P plus 0.01 of the round's pooled counts in batches of the last
    epoch. Here, as in the paper, it is the round's mean alone.
  * The code's tuning has, for each client's row, a softmax over the global rows, in shuffled batches of ten
    at rate 0.01. The distance to the row's own class has a margin added: the largest distance of a row of the
    mean to its nearest row.
  * (8) has inner products. The code has cosines, of features and rows after two more layers. Here they are
    cosines of features and rows themselves.
  * In the code a labeled example has the set of its prediction p_G, as unlabeled ones have, and not its
    label's; it serves as a negative, and has no l_i of its own.
  * The code leaves out negatives with a cosine below 0, treats strong views as further examples, weighs rows
    by p_G, also counts an example as sure if p_L is, and averages over all unlabeled examples.

Labels at the server: the server trains on them, and clients train on the terms of unlabeled examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.algorithms.proxyfl.class_prior import class_shares, prior_sent, prior_store, share_bytes
from jaxfed.algorithms.proxyfl.proxy_pool import class_sets, contrast
from jaxfed.algorithms.proxyfl.proxy_tuning import with_tuned_proxies
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.models.head import Path, dense_head, leaf_of
from jaxfed.settings import CountOrZero, NotNegative, Share
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.local.losses import (
    Augment,
    Batch,
    Loss,
    Pointwise,
    labeled_mean,
    mean_where,
    view,
)
from jaxfed.training.round.client_round import Client, Shared, finished, local_steps
from jaxfed.training.round.labels_at_server import plain_part
from jaxfed.training.round.round import federated_training
from jaxfed.training.round.server_hooks import Messages
from jaxfed.training.round.two_views import ALL, begin_of
from jaxfed.training.specification import Training

if TYPE_CHECKING:
    from jaxfed.models import Model


@method(
    title="ProxyFL",
    cites="Chen, Wang, CVPR 2026, arXiv 2602.21078",
    leaves="its model's change, and the C class shares among its labels and sure predictions",
    on_network=True,
    pseudo_label=ALL,
    labels_at=EVERYWHERE,
    two_views=True,
)
def proxyfl(
    *,
    training: Training,
    threshold: Share = 0.95,
    unlabeled_weight: NotNegative = 1.0,
    contrast_weight: NotNegative = 1.0,
    tuning_steps: CountOrZero = 100,
    tuning_rate: NotNegative = 0.005,
) -> FederatedAlgorithm:
    """ProxyFL.

    Args:
        training: the training specification; its `local.strong_augment` is needed, and a network whose head
            is one dense layer.
        threshold: tau in [0, 1]: the received model is sure of an example if its confidence is at least tau.
        unlabeled_weight: weight of the pseudo-labels' term.
        contrast_weight: weight of the contrastive term.
        tuning_steps: Q, the server's steps; 10 for CIFAR-100, 100 for other data. 0 is FedAvg's aggregation.
        tuning_rate: eta, learning rate of these steps.

    Raises:
        UsageError: a number out of range, no strong augmentation, or a network with another head.

    Cost: FixMatch's, plus a forward pass over each weak view and, each round, one over a client's data. The
    server computes Q C^2 D per client.
    """
    strong = training.local.strong_augment_for("proxyfl")
    kernel, _, num_classes = dense_head(training.model, "proxyfl")
    tuned = with_tuned_proxies(training.server.aggregate, kernel, tuning_steps, tuning_rate)
    training = training.with_server(aggregate=tuned)

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        p, is_unlabeled = begin_of(training, shared, client, key).predictions()
        shares = class_shares(client.data, p, is_unlabeled, threshold)
        loss = proxy_loss(
            training.model,
            kernel,
            client.received,
            weak=training.local.augment,
            strong=strong,
            threshold=threshold,
            unlabeled_weight=unlabeled_weight,
            contrast_weight=contrast_weight,
            pointwise=training.local.pointwise,
        )
        trained = local_steps(training, shared, client, key, loss=loss, batches=batches)
        update = finished(training, shared, client, trained)
        return update._replace(upload=shares, sent={"class_shares": share_bytes(shares)})

    return federated_training(
        training,
        local_update,
        pseudo_label=ALL,
        messages=Messages(prior_sent),
        hooks=(prior_store(num_classes),),
        server_part=plain_part(training),
    )


def proxy_loss(
    model: Model,
    kernel: Path,
    prior: jax.Array,
    *,
    weak: Augment | None,
    strong: Augment,
    threshold: float,
    unlabeled_weight: float,
    contrast_weight: float,
    pointwise: Pointwise,
) -> Loss:
    """L of a batch; both views go through the network together."""

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        weak_key, strong_key, model_key = jax.random.split(key, 3)
        weak_x = view(weak, weak_key, batch.x)
        inputs = jnp.concatenate([weak_x, view(strong, strong_key, batch.x)])
        features, moved = model.train_features(state, inputs, model_key)
        weak_logits, strong_logits = jnp.split(model.head(state, features), 2)
        received = jax.nn.softmax(model.apply(anchor, weak_x).astype(jnp.float32))
        sets, is_sure = class_sets(received, batch, prior, threshold)
        own = jax.lax.stop_gradient(jax.nn.softmax(weak_logits.astype(jnp.float32)))
        terms = contrast(
            jnp.split(features, 2)[0].astype(jnp.float32),
            leaf_of(state, kernel).T,
            sets,
            jnp.where(is_sure[:, None], 1, own),
            batch.used,
        )
        sure = batch.used & is_sure
        unsure = batch.used & ~batch.is_labeled & ~is_sure & jnp.any(sets, axis=-1)
        label = jnp.argmax(received, axis=-1).astype(jnp.int32)
        value = labeled_mean(pointwise(weak_logits, batch.label), batch)
        value += unlabeled_weight * mean_where(pointwise(strong_logits, label), sure)
        value += contrast_weight * (mean_where(terms, sure) + mean_where(terms, unsure))
        return value, moved

    return loss
