"""FedAvg whose clients compare two views of their unlabeled examples (FixMatch and its relatives).

Such a method is a term of `jaxfed.training.local.consistency`, with its changes to a client's update. A term
may depend on what a client computes before its first step (`Begin`), such as thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.random_streams import Stream
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.local.client_predictions import client_logits, is_unlabeled
from jaxfed.training.local.consistency import Term, consistency, graph_where_unsure
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.local.losses import proximal
from jaxfed.training.round.client_round import Client, LocalUpdate, Shared, finished, local_steps
from jaxfed.training.round.labels_at_server import plain_part
from jaxfed.training.round.round import federated_training
from jaxfed.training.server.server_state import with_statistics
from jaxfed.training.specification import Training

ALL = "unlabeled"  # the source that lets unlabeled examples take part, without a label


class Begin(NamedTuple):
    """A client before its first step.

    Fields:
        training: the training specification.
        model: the received model, with the client's statistics.
        data: its examples.
        key: for random draws before the first step.
    """

    training: Training
    model: nnx.State
    data: ClientData
    key: jax.Array

    def predictions(self) -> tuple[jax.Array, jax.Array]:
        """Return the received model's probabilities on one weak view, and which examples are unlabeled.

        They are float32 [N, C] and bool [N]. Cost: one forward pass over the client's data.
        """
        training = self.training
        weak = training.local.augment
        logits = client_logits(training.model, self.model, self.data, self.key, weak)
        return jax.nn.softmax(logits), is_unlabeled(self.data)


TermOf = Callable[[Begin], Term]


def two_view_update(
    training: Training,
    method: str,
    term_of: TermOf,
    *,
    asks_received: bool = False,
    unlabeled_weight: float = 1.0,
    mu: float = 0.0,
) -> LocalUpdate:
    """A client's local steps on `consistency` with a term that is built anew in each round.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        method: its name, for the error without a strong augmentation.
        term_of: makes a client's term for this round.
        asks_received: see `consistency`.
        unlabeled_weight: see `consistency`.
        mu: proximal weight; FedProx.

    Raises:
        UsageError: no strong augmentation.
    """
    local = training.local
    strong = local.strong_augment_for(method)

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        begin = begin_of(training, shared, client, key)
        loss = consistency(
            training.model,
            weak=local.augment,
            strong=strong,
            term=term_of(begin),
            asks_received=asks_received,
            unlabeled_weight=unlabeled_weight,
            pointwise=local.pointwise,
        )
        loss = proximal(loss, mu) if mu else loss
        trained = local_steps(training, shared, client, key, loss=loss, batches=batches)
        return finished(training, shared, client, trained)

    return local_update


def begin_of(training: Training, shared: Shared, client: Client, key: jax.Array) -> Begin:
    """Return the client before its first step, with a key that no step uses."""
    own_key = jax.random.fold_in(key, Stream.BEFORE_STEPS)
    return Begin(training, with_statistics(shared.model, client.statistics), client.data, own_key)


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
        server_part=plain_part(training),
        takes_all=pseudo_label != ALL,
    )


def with_source(term: Term, pseudo_label: str, threshold: float, training: Training) -> Term:
    """The term, with this source's labels where no network is sure; as it is for "unlabeled"."""
    if pseudo_label == ALL:
        return term
    return graph_where_unsure(term, threshold, training.local.pointwise)
