"""FedMatch: a part of the model for labels and one for consistency, labels at clients or at the server.

Parameters are a sum theta = sigma + psi. Labels train sigma, unlabeled examples train psi; the other part
is held fixed (sigma*, psi*). With x in B_L, u in B_U, p = softmax(f_{sigma* + psi}(u)):

    L_s(sigma) = lambda_s mean_x CE(y, f_{sigma + psi*}(x))
    L_u(psi) = lambda_ICCS mean_u [ 1/H sum_j KL(p_j(u) || p(u)) + CE(yhat(u), f_{sigma* + psi}(strong(u))) ]
               + lambda_L2 |sigma* - psi|^2 + lambda_L1 |psi|_1
    yhat = the class that most of p, p_1 .. p_H predict; the smallest of equals
    sigma <- mean_k sigma_k,   psi <- mean_k psi_k

The mean over u is over those with max p >= tau. Client k's helpers j = 1 .. H are the clients whose
models were nearest to its own when the server saw them last (`jaxfed.algorithms.fedmatch.helper_selection`),
sent in every tenth round. The server sends their psi_j; p_j = softmax(f_{sigma + psi_j}), with sigma as the
client received it. In other rounds, or if the server has not seen the client before, the client labels alone.

Where the paper leaves details open, this follows the authors' code: psi starts as 0.2 sigma
(a given model is the sum of both); the distribution
of the random input; u is not augmented in the first term. (The code does not augment x either; here
`LocalTraining.augment` decides.) The paper makes psi and changes sparse but gives no thresholds; the code's:

    psi_threshold = 5e-6      entries of psi up to this are 0 where it is sent and evaluated
    delta_threshold = 5e-5    entries that a client changed by no more are not sent, and stay

With both 0, what is exactly 0 or unchanged is not sent either. Otherwise than the code: the client trains
on the psi that it was sent, small entries 0 (the code counts them as 0, and trains with them); clients
keep nothing between rounds, so that sigma comes down whole (the code counts what differs from what the
client had when it last took part); both gradients of a step are taken at one (sigma, psi), while the
code updates sigma first, a difference of second order in eta; the rate is the experiment's schedule,
while each of the code's clients divides its own by 3 where validation does not improve five times.

Labels at the server (its second scenario): the server trains sigma by L_s, psi held fixed, then clients train
psi by L_u, sigma held fixed, and only psi is sent back. There the code has psi_threshold = delta_threshold =
lambda_L1 = 1e-5, one server epoch, and batches of 100.

It runs in simulation only: the server compares what clients have sent, in `ServerState.clients`.

A client sends sigma and psi; it receives sigma, and what is not 0 of psi and of H psi_j. Bytes:
`jaxfed.algorithms.fedmatch.sparse_message`, one message a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.algorithms.fedmatch import helper_selection, two_part_model
from jaxfed.algorithms.fedmatch.agreement import majority, mean_divergence
from jaxfed.algorithms.fedmatch.helper_selection import Helpers
from jaxfed.algorithms.fedmatch.two_part_model import (
    composed,
    sparse,
    with_parts_of,
    with_statistics_of,
)
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.settings import Count, NotNegative
from jaxfed.training.local import losses
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.local.losses import Augment, Batch, Loss, Pointwise
from jaxfed.training.round.client_round import ClientRound
from jaxfed.training.round.labels_at_server import ServerPart
from jaxfed.training.round.round import federated_training
from jaxfed.training.round.server_hooks import Messages
from jaxfed.training.server.server_state import together
from jaxfed.training.specification import Training

if TYPE_CHECKING:
    from jaxfed.models import Model


class LossWeights(NamedTuple):
    """The lambdas of L_s and L_u, and tau."""

    supervised: float
    consistency: float
    l2: float
    l1: float
    confidence: float


@method(
    title="FedMatch",
    cites="Jeong, Yoon, Yang, Hwang, ICLR 2021",
    leaves="the changed entries of its two parts of the model",
    pseudo_label="unlabeled",
    labels_at=EVERYWHERE,
    two_views=True,
    weighting="uniform",
)
def fedmatch(
    *,
    training: Training,
    supervised_weight: NotNegative = 10.0,
    consistency_weight: NotNegative = 0.01,
    l2_weight: NotNegative = 10.0,
    l1_weight: NotNegative = 1e-4,
    confidence: NotNegative = 0.75,
    num_helpers: Count = 2,
    helper_interval: Count = 10,
    psi_threshold: NotNegative = 0.0,
    delta_threshold: NotNegative = 0.0,
) -> FederatedAlgorithm:
    """FedMatch, in the scenario that `training.server.examples` says.

    Args:
        training: the training specification; its `local.strong_augment` is needed. The paper's rate is 1e-3
            and goes with its weights: SGD needs 2 `l2_weight` learning_rate < 2.
        supervised_weight: lambda_s, weight of the labels' term.
        consistency_weight: lambda_ICCS, weight of the terms of unlabeled examples.
        l2_weight: lambda_L2, weight of the squared distance of the two parts.
        l1_weight: lambda_L1, weight of the sum of |psi|, which makes psi sparse.
        confidence: tau, confidence from which an unlabeled example counts.
        num_helpers: H >= 1, number of helpers of a client.
        helper_interval: helpers are sent in every so many-th round.
        psi_threshold: entries of psi up to this are 0 where it is sent and evaluated; 5e-6 in the code.
        delta_threshold: entries that a client changed by no more are not sent; 5e-5 in the code.

    Raises:
        UsageError: a number out of range, or no strong augmentation.

    Cost: two passes over a batch and one over its two views, and H + 1 in evaluation; the server keeps
    one psi a client.
    """
    weights = LossWeights(supervised_weight, consistency_weight, l2_weight, l1_weight, confidence)
    plain, strong = training.model, training.local.strong_augment
    training = training.with_states(
        two_part_model.two_part_model(plain, psi_threshold), two_part_model.divided
    )

    is_at_server = training.server.examples is not None
    by_labels = sigma_loss(
        plain, weights, weak=training.local.augment, pointwise=training.local.pointwise
    )

    def server_update(client: ClientRound) -> ClientUpdate:
        trained = client.steps(by_labels)
        after = with_parts_of(client.shared.model, trained.state, "psi")
        return client.update(trained._replace(state=after))

    def local_update(client: ClientRound) -> ClientUpdate:
        received = sparse(client.model, psi_threshold)
        by_agreement = psi_loss(
            plain, client.received, weights, strong=strong, pointwise=training.local.pointwise
        )
        loss = by_agreement if is_at_server else fedmatch_loss(by_labels, by_agreement)
        trained = client.steps(loss, start=received)
        after = trained.state
        if is_at_server:  # weight decay would change what is held fixed
            after = with_parts_of(received, after, "sigma")
        returned, num_bytes = two_part_model.changed(
            received, sparse(after, psi_threshold), delta_threshold
        )
        seen = helper_selection.seen(
            plain, composed(returned), returned["psi"], client.data.x.shape[1:]
        )
        seen = seen._replace(is_known=jnp.any(client.data.mask))  # without examples: no helper
        return client.update(
            trained._replace(state=returned), client_state=seen, sent={"parameters": num_bytes}
        )

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=lambda model, federation: helper_selection.unseen(
            nnx.filter_state(model, nnx.Param)["psi"], federation.num_classes
        ),
        messages=Messages(
            helper_selection.helper_sender(num_helpers, helper_interval),
            two_part_model.received_bytes(psi_threshold),
        ),
        server_part=ServerPart(server_update),
    )


def fedmatch_loss(by_labels: Loss, by_agreement: Loss) -> Loss:
    """L_s(sigma) + L_u(psi) of states {sigma, psi}: the gradient of each part is its own loss's."""

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        supervised_key, unsupervised_key = jax.random.split(key)
        supervised, state = by_labels(state, anchor, batch, supervised_key)
        unsupervised, state = by_agreement(state, anchor, batch, unsupervised_key)
        return supervised + unsupervised, state

    return loss


def sigma_loss(
    model: Model, weights: LossWeights, *, weak: Augment | None, pointwise: Pointwise
) -> Loss:
    """L_s(sigma) of states {sigma, psi}; psi has no gradient."""

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        del anchor
        fixed_psi = jax.lax.stop_gradient(state["psi"])
        theta = composed(together(sigma=state["sigma"], psi=fixed_psi))
        logits, moved = losses.augmented_logits(model, theta, batch.x, key, weak)
        value = losses.labeled_mean(pointwise(logits, batch.label), batch)
        return weights.supervised * value, with_statistics_of(state, moved)

    return loss


def psi_loss(
    model: Model,
    helpers: Helpers,
    weights: LossWeights,
    *,
    strong: Augment | None,
    pointwise: Pointwise,
) -> Loss:
    """L_u(psi) of states {sigma, psi}; sigma has no gradient."""

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        fixed_sigma, psi = jax.lax.stop_gradient(state["sigma"]), state["psi"]
        held = together(sigma=fixed_sigma, psi=psi)
        by_agreement, moved = unsupervised(held, anchor, batch, key)
        nearness = weights.l2 * losses.squared_distance(fixed_sigma, psi)
        sparsity = weights.l1 * losses.absolute_size(psi)
        return by_agreement + (nearness + sparsity), with_statistics_of(state, moved)

    def unsupervised(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        augment_key, model_key = jax.random.split(key)
        x = losses.views((None, strong), (augment_key,) * 2, batch.x)
        logits, moved = model.train_apply(composed(state), x, model_key)
        logits, strong_logits = jnp.split(logits.astype(jnp.float32), 2)
        log_p = jax.nn.log_softmax(logits)
        log_p_j = two_part_model.log_probabilities(model, anchor["sigma"], helpers.psi, batch.x)
        is_sure = jnp.max(log_p, axis=-1) >= jnp.log(weights.confidence)
        member = batch.used & ~batch.is_labeled & is_sure
        label = majority(log_p_j, log_p, helpers.is_there)
        agreement = losses.mean_where(pointwise(strong_logits, label), member)
        consistency = losses.mean_where(mean_divergence(log_p_j, log_p, helpers.is_there), member)
        return weights.consistency * (consistency + agreement), moved

    return loss
