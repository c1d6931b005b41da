"""FedLabel: each example is labeled by the surer of two models.

For an unlabeled example, p_L is the prediction of the model in training and p_G that of the received model
(`jaxfed.training.local.consistency`). p* is the one with the larger maximum, p' the other:

    term = 1[max p* >= tau] CE(f(strong(x)), argmax p*)
           + 1[max p* >= tau, argmax p* = argmax p'] lambda (max p' / max p*) KL(p', softmax(f(strong(x))))

Where both models agree, p' is a target too, weighted by its relative confidence. No code by the authors is
known. SAGE's code has this method as an option, with lambda = 1.

Labels at the server: the server trains on them, and clients train on the term alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.settings import NotNegative, Share
from jaxfed.training.local.consistency import Term, Views, divergence
from jaxfed.training.local.losses import Pointwise
from jaxfed.training.round.two_views import two_view_training, two_view_update
from jaxfed.training.specification import Training


@method(
    title="FedLabel",
    cites="Cho, Joshi, Dimitriadis, ICCV 2023",
    leaves="its model's change",
    on_network=True,
    pseudo_label="unlabeled",
    labels_at=EVERYWHERE,
    two_views=True,
)
def fedlabel(
    *,
    training: Training,
    threshold: Share = 0.95,
    unlabeled_weight: NotNegative = 1.0,
    agreement_weight: NotNegative = 1.0,
) -> FederatedAlgorithm:
    """FedAvg on FedLabel's loss.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        threshold: tau in [0, 1]: an example counts if the surer model's confidence is at least tau.
        unlabeled_weight: weight of the pseudo-labels' term.
        agreement_weight: lambda, weight of the second prediction where both models agree.

    Cost: FixMatch's, plus one forward pass over the weak view.
    """
    term = surer(threshold, agreement_weight, training.local.pointwise)
    update = two_view_update(
        lambda client: term, asks_received=True, unlabeled_weight=unlabeled_weight
    )
    return two_view_training(training, update)


def surer(threshold: float, agreement_weight: float, pointwise: Pointwise) -> Term:
    """FedLabel's term of an unlabeled example."""

    def term(views: Views) -> jax.Array:
        current_wins = jnp.max(views.current, axis=-1) >= jnp.max(views.received, axis=-1)
        winner = jnp.where(current_wins[:, None], views.current, views.received)
        loser = jnp.where(current_wins[:, None], views.received, views.current)
        label = jnp.argmax(winner, axis=-1).astype(jnp.int32)
        agrees = label == jnp.argmax(loser, axis=-1)
        share = jnp.max(loser, axis=-1) / jnp.max(winner, axis=-1)
        second = jnp.where(agrees, share * divergence(views.strong, loser), 0)
        value = pointwise(views.strong, label) + agreement_weight * second
        return (jnp.max(winner, axis=-1) >= threshold).astype(jnp.float32) * value

    return term
