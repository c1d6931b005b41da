"""FedAvg: the clients' models are averaged, with or without pseudo-labels.

    w_k <- w;  E epochs of  w_k <- w_k - eta grad l(w_k; batch);   w <- w + sum_k p_k (w_k - w) / sum_k p_k

p_k is by default the number of examples, and with pseudo-labels 1, as in XCLP's A.2
(`ServerTraining.weighting`). The round, with its mean, is `jaxfed.training.round.round`. Methods of this
family differ in the labels that clients train on:

  * `fedavg`: the given labels only.
  * `fedavg_xclp`: pseudo-labels by XCLP over the round's cohort (FedAvg+XCLP: Scott, Yeo, Lampert, TMLR 2023,
    Algorithm 2).
  * `fedavg_xclp_prototypes`: the same, with each client's class prototypes in place of its labeled points
    (`jaxfed.training.pseudo_labels.propagated_labels`).
  * `fedavg_per_client_lp`: label propagation inside each client (FedAvg+perclientLP).
  * `fedavg_network`: the current network's labels (FedAvg+network); `jaxfed.algorithms.fedsem` has those of a
    frozen network.

Labels at the server: it trains on them first, then the clients train on pseudo-labels alone. Without
pseudo-labels no client takes part: the server learns alone, which is the lower bound. With XCLP the server is
one more party of the labeling.

With XCLP a client sends the messages of Algorithm 1 as well, where a prototype is a labeled point like any
other. Each client receives the model.
"""

from __future__ import annotations

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.training.round.client_round import plain_update
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training


@method(
    title="FedAvg",
    cites="McMahan, Moore, Ramage, Hampson, Agueera y Arcas, AISTATS 2017",
    leaves="its model's change",
    on_network=True,
    labels_at=EVERYWHERE,
    weighting=lambda settings: None if settings.pseudo_label == "none" else "uniform",
)
def fedavg(*, training: Training, pseudo_label: str = "none") -> FederatedAlgorithm:
    """FedAvg on the labels that a pseudo-labeler finds.

    Args:
        training: the training specification.
        pseudo_label: name of the pseudo-labeler; "none": given labels alone.
    """
    return federated_training(
        training,
        plain_update(training.loss),
        pseudo_label=pseudo_label,
        server_update=plain_update(training.loss),
    )
