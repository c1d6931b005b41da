"""FedAvg whose clients compare two views of their unlabeled examples (FixMatch and its relatives).

Such a method is a term of `jaxfed.training.local.consistency`, with its changes to a client's update. A term
may depend on what a client computes before its first step, such as thresholds.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.training.local.consistency import Term, consistency, graph_where_unsure
from jaxfed.training.local.losses import proximal
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, LocalUpdate, plain_update
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training

ALL = "unlabeled"  # the source that lets unlabeled examples take part, without a label
TermOf = Callable[[ClientRound], Term]


def two_view_update(
    term_of: TermOf, *, asks_received: bool = False, unlabeled_weight: float = 1.0, mu: float = 0.0
) -> LocalUpdate:
    """A client's local steps on `consistency` with a round's term, and FedProx's term of weight `mu`."""

    def local_update(client: ClientRound) -> ClientUpdate:
        loss = consistency(
            client.training.model,
            client.training.local,
            term_of(client),
            asks_received=asks_received,
            unlabeled_weight=unlabeled_weight,
        )
        return client.update(client.steps(proximal(loss, mu) if mu else loss))

    return local_update


def two_view_training(
    training: Training, local_update: LocalUpdate, *, pseudo_label: str = ALL
) -> FederatedAlgorithm:
    """FedAvg with this update on all examples, labeled or not, wherever the labels are.

    With another source, its labels are in the batches of unlabeled examples (`with_source`). An example that
    it does not label takes part with weight 0 there: a network may be sure of it.
    """
    return federated_training(
        training,
        local_update,
        pseudo_label=pseudo_label,
        server_update=plain_update(training.loss),
        takes_all=pseudo_label != ALL,
    )


def with_source(term: Term, pseudo_label: str, threshold: float, training: Training) -> Term:
    """The term, with this source's labels where no network is sure; as it is for "unlabeled"."""
    if pseudo_label == ALL:
        return term
    return graph_where_unsure(term, threshold, training.local.pointwise)
