"""FixMatch: confident labels of weak views are targets for strong views, within FedAvg or FedProx.

    w_k <- w;  E epochs of  w_k <- w_k - eta grad [ l_FixMatch(w_k; B_L u B_U) + mu / 2 |w_k - w|^2 ]
    mean as FedAvg

(The baselines FixMatch-FedAvg and FixMatch-FedProx of FedMatch and of ProtoFSSL; the loss is
`jaxfed.training.local.consistency` with its term `confident`.) The augmentation of `Training` is the weak
one, its strong augmentation the strong one. In FixMatch, B_U is 7 times as large as B_L:
`Batches.unlabeled_ratio`.

  * `labeled_by="own"`: the model in training labels (FixMatch-LPL in the papers of SAGE and ProxyFL).
  * `labeled_by="received"`: the model that the server sent labels, frozen for the round (FixMatch-GPL).
  * `thresholds`: "fixed", or by class as in FlexMatch and FreeMatch
    (`jaxfed.training.local.consistency`).
  * `pseudo_label`: a further source labels where no network reaches `threshold` itself. FlexMatch's
    thresholds, which are never above it, then change nothing.

Difference from the authors' code: BatchNorm sees a strong view of labeled examples too; the code's batch has
their weak view alone.

Labels at the server: the server trains on them, weakly augmented, and clients train on the second term alone.
"""

from __future__ import annotations

from typing import Any

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.settings import NotNegative, Share
from jaxfed.training.local.consistency import THRESHOLDS, LabeledBy, Term, Thresholds, confident
from jaxfed.training.round.client_round import ClientRound
from jaxfed.training.round.two_views import ALL, two_view_training, two_view_update, with_source
from jaxfed.training.specification import Training


@method(
    title="FixMatch",
    cites="Sohn et al., NeurIPS 2020",
    leaves="its model's change",
    on_network=True,
    labels_at=EVERYWHERE,
    two_views=True,
)
def fixmatch(
    *,
    training: Training,
    threshold: Share = 0.95,
    unlabeled_weight: NotNegative = 1.0,
    mu: NotNegative = 0.0,
    labeled_by: LabeledBy = "own",
    thresholds: Thresholds = "fixed",
    pseudo_label: str = ALL,
) -> FederatedAlgorithm:
    """FedAvg on FixMatch's loss; FedProx with mu > 0.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        threshold: confidence in [0, 1] from which an unlabeled example counts; "freematch" sets its own.
        unlabeled_weight: weight of the consistency term; 1 in the paper, 0.01 in ProtoFSSL's baseline.
        mu: proximal weight.
        labeled_by: model that labels: "own", the one in training; "received", the server's of this round.
        thresholds: "fixed", or by class: "flexmatch", "freematch".
        pseudo_label: source of labels where no network has the confidence `threshold`. "xclp" weighs labels
            by its confidence; "unlabeled": such examples do not count.

    Cost: "received" takes one more forward pass over each batch; thresholds by class take one over a
    client's data in each round.
    """

    def term_of(client: ClientRound) -> Term:
        least: Any = threshold
        if thresholds != "fixed":
            least = THRESHOLDS[thresholds](*client.predictions(), threshold)
        term = confident(least, labeled_by=labeled_by, pointwise=training.local.pointwise)
        return with_source(term, pseudo_label, threshold, training)

    update = two_view_update(
        term_of, asks_received=labeled_by == "received", unlabeled_weight=unlabeled_weight, mu=mu
    )
    return two_view_training(training, update, pseudo_label=pseudo_label)
