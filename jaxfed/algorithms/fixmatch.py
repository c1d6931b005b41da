"""FixMatch (Sohn et al., NeurIPS 2020) as the clients' loss in FedAvg or FedProx.

    w_k <- w;  E epochs of  w_k <- w_k - eta grad [ l_FixMatch(w_k; B_L u B_U) + mu / 2 |w_k - w|^2 ]
    mean as FedAvg

(The baselines FixMatch-FedAvg and FixMatch-FedProx of FedMatch and of ProtoFSSL; the loss is
`jaxfed.training.local.losses.fixmatch`.) The augmentation of `Training` is the weak one, its strong
augmentation the strong one. FixMatch has B_U 7 times as large as B_L: `Batches.unlabeled_ratio`.

Labels at the server: it trains on them, weakly augmented, and the clients on the second term alone.

Leaves a client: its model's change.
"""

from __future__ import annotations

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.rules import NOT_NEGATIVE, SHARE, keywords
from jaxfed.training.local import losses
from jaxfed.training.needs import EVERYWHERE, needs
from jaxfed.training.round.client_round import plain_update
from jaxfed.training.round.labels_at_server import plain_part
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training


@keywords(threshold=SHARE, unlabeled_weight=NOT_NEGATIVE, mu=NOT_NEGATIVE)
@needs(pseudo_label="unlabeled", labels_at=EVERYWHERE, two_views=True)
def fixmatch(
    *,
    training: Training,
    threshold: float = 0.95,
    unlabeled_weight: float = 1.0,
    mu: float = 0.0,
) -> FederatedAlgorithm:
    """FedAvg on FixMatch's loss; FedProx with mu > 0.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        threshold: confidence in [0, 1] that an unlabeled example takes to count.
        unlabeled_weight: of the consistency term; 1 in the paper, 0.01 in ProtoFSSL's baseline.
        mu: proximal weight.

    Raises:
        UsageError: a number out of range, or no strong augmentation.
    """
    loss = losses.fixmatch(
        training.model,
        weak=training.local.augment,
        strong=training.local.strong_augment_for("fixmatch"),
        threshold=threshold,
        unlabeled_weight=unlabeled_weight,
        pointwise=training.local.pointwise,
    )
    if mu:
        loss = losses.proximal(loss, mu)
    return federated_training(
        training,
        plain_update(training, loss),
        pseudo_label="unlabeled",
        server_part=plain_part(training),
    )
