"""SAGE: two models label, weighed by their confidence.

Client k trains w_k, starting from the received w. For an unlabeled example, p_L is the prediction of w_k and
p_G that of w (`jaxfed.training.local.consistency`):

    d = |max p_L - max p_G|,   l = exp(-kappa d)
    target = l onehot(argmax p_L) + (1 - l) onehot(argmax p_G)      if max p_L >= tau
             onehot(argmax p_G)                                     else, if max p_G >= tau
    term = KL(target, softmax(f(strong(x))))                        0 if neither is sure

A large difference in confidence is a sign of local drift, and moves the target to the received model's class.
kappa is ln 2 / 0.05: at d = 0.05 both models count half.

Differences from the authors' code:

  * Its option --kappa 0.5 is never read: ln 2 / 0.05 is hard-coded in the step. Here that is the default.
  * One optimizer serves all clients and rounds, so momentum carries over from client to client. Here each
    client starts without (`training.client_optimizer`), as in the paper.
  * Labeled examples are also in the unlabeled set, and count twice in clients' weights. Not so here. (The
    code stores the labeled set 2000 times, so its weights are nearly the numbers of labels.)
  * BatchNorm here sees a strong view of labeled examples too; the code's batch has their weak view alone.

`sage_xclp` uses XCLP's labels, from the graph of the round's cohort, where neither model is sure
(`jaxfed.training.local.consistency.graph_where_unsure`). The combination is jaxfed's, from neither paper.

Labels at the server: the server trains on them, and clients train on the term alone.

With XCLP a client sends the messages of XCLP's Algorithm 1 as well.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.settings import NotNegative, Share
from jaxfed.training.local.consistency import Term, Views, divergence
from jaxfed.training.round.two_views import ALL, two_view_training, two_view_update, with_source
from jaxfed.training.specification import Training


@method(
    title="SAGE",
    cites="Liu, Shang, Zhang, Lu, Gong, Xue, Wang, CVPR 2025",
    leaves="its model's change",
    on_network=True,
    labels_at=EVERYWHERE,
    two_views=True,
)
def sage(
    *,
    training: Training,
    threshold: Share = 0.95,
    unlabeled_weight: NotNegative = 1.0,
    kappa: NotNegative = math.log(2) / 0.05,
    pseudo_label: str = ALL,
) -> FederatedAlgorithm:
    """FedAvg on SAGE's loss.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        threshold: tau in [0, 1]: an example counts if the confidence of either model is at least tau.
        unlabeled_weight: weight of the unlabeled examples' term.
        kappa: decay of the local model's weight with d; 0: its class alone wherever it is sure.
        pseudo_label: source of labels where neither model is sure. "xclp" weighs labels by its confidence;
            "unlabeled": such examples do not count.

    Cost: FixMatch's, plus one forward pass over the weak view.
    """
    term = with_source(corrected(threshold, kappa), pseudo_label, threshold, training)
    update = two_view_update(
        lambda client: term, asks_received=True, unlabeled_weight=unlabeled_weight
    )
    return two_view_training(training, update, pseudo_label=pseudo_label)


def corrected(threshold: float, kappa: float) -> Term:
    """SAGE's term of an unlabeled example."""

    def term(views: Views) -> jax.Array:
        target, counts = correction(views.current, views.received, threshold, kappa)
        return counts * divergence(views.strong, target)

    return term


def correction(
    p_client: jax.Array, received: jax.Array, threshold: float, kappa: float
) -> tuple[jax.Array, jax.Array]:
    """Return targets [B, C] from p_L and p_G [B, C], and 1 where either is sure, else 0, float32 [B]."""
    sure_own, sure_received = jnp.max(p_client, axis=-1), jnp.max(received, axis=-1)
    share = jnp.exp(-kappa * jnp.abs(sure_own - sure_received))
    share = jnp.where(sure_own >= threshold, share, 0)[:, None]
    classes = p_client.shape[-1]
    by_own = jax.nn.one_hot(jnp.argmax(p_client, axis=-1), classes)
    by_received = jax.nn.one_hot(jnp.argmax(received, axis=-1), classes)
    counts = jnp.maximum(sure_own, sure_received) >= threshold
    return share * by_own + (1 - share) * by_received, counts.astype(jnp.float32)
