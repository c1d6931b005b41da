"""FedAvg (McMahan, Moore, Ramage, Hampson, Agueera y Arcas, AISTATS 2017), with or without pseudo-labels.

    w_k <- w;  E epochs of  w_k <- w_k - eta grad l(w_k; batch);   w <- w + sum_k p_k (w_k - w) / sum_k p_k

The labels decide what it is: given ones only (FedAvg, labeled only), XCLP's of the round's cohort
(FedAvg+XCLP: Scott, Yeo, Lampert, TMLR 2023, Algorithm 2), XCLP's with each client's class prototypes for
labeled points (`jaxfed.training.pseudo_labels.graph_points`), label propagation inside each client
(FedAvg+perclientLP), the current network's (FedAvg+network), or those of the model that stage 1 ended
with (FedSem+: Albaseer et al., IWCMC 2020, with XCLP's confidence weights).

Labels at the server: it trains on them first, and the clients on pseudo-labels alone. Without pseudo-labels
no client takes part: the server's own learning, the lower bound. With XCLP the server is one more party.

Leaves a client: its model's change; with XCLP, what Algorithm 1 sends, of a prototype what it sends of any
labeled point. Reaches one: the model; with FedSem+ the frozen model too, once.
"""

from __future__ import annotations

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.training.ingredients import Training
from jaxfed.training.needs import EVERYWHERE, needs
from jaxfed.training.round.client_round import plain_update
from jaxfed.training.round.labels_at_server import plain_part
from jaxfed.training.round.round import federated_training


@needs(labels_at=EVERYWHERE)
def fedavg(*, training: Training, pseudo_label: str = "none") -> FederatedAlgorithm:
    """FedAvg on the labels that a pseudo-labeler finds.

    Args:
        training: the ingredients.
        pseudo_label: name of the pseudo-labeler; "none": given labels alone.
    """
    return federated_training(
        training,
        plain_update(training, training.loss),
        pseudo_label=pseudo_label,
        server_part=plain_part(training),
    )


@needs(pseudo_label="teacher", labels_at=EVERYWHERE)
def fedsem(*, training: Training) -> FederatedAlgorithm:
    """FedSem+: network labels by the model that stage 2 starts from, frozen.

    That is `training.initial_model` (the selected state of stage 1, or its last), or the last state of
    `labeled_only_rounds` where both stages are one run.

    A client labels its data once, in the first round of stage 2 that it takes part in, and keeps the
    labels; computed again here, they are the same. For that it receives the frozen model once, beside the
    current one (`communication.download.teacher`), except in the first round, where the two are one. The
    authors' code labels at all clients before that round: then each of the m clients receives it.
    """
    return federated_training(
        training,
        plain_update(training, training.loss),
        pseudo_label="teacher",
        keep_teacher=True,
        server_part=plain_part(training),
    )
