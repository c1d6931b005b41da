"""FedProx: FedAvg held near the server's model.

    w_k <- w;  E epochs of  w_k <- w_k - eta grad [ l(w_k; batch) + mu / 2 |w_k - w|^2 ];   w <- mean_k w_k

Labels at the server: as FedAvg; the server's training has no proximal term.

The mean has equal weights, as in the paper. The paper draws clients by their size, and lets stragglers do
fewer steps; here the experiment's `sampling` draws them.
"""

from __future__ import annotations

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.settings import NotNegative
from jaxfed.training.local.losses import proximal
from jaxfed.training.round.client_round import plain_update
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training


@method(
    title="FedProx",
    cites="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020",
    leaves="its model's change",
    on_network=True,
    labels_at=EVERYWHERE,
    weighting="uniform",
)
def fedprox(
    *, training: Training, mu: NotNegative = 0.01, pseudo_label: str = "none"
) -> FederatedAlgorithm:
    """FedProx on the labels that a pseudo-labeler finds.

    Args:
        training: the training specification.
        mu: proximal weight; 0 is FedAvg.
        pseudo_label: name of the pseudo-labeler; "none": given labels alone.
    """
    return federated_training(
        training,
        plain_update(proximal(training.loss, mu)),
        pseudo_label=pseudo_label,
        server_update=plain_update(training.loss),
    )
