"""The ingredients that every method which trains a model is made of, chosen once for an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import jax
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.training.aggregate import Aggregate
from jaxfed.training.local_update import Batches, ClientData, Optimizer
from jaxfed.training.losses import Augment, Loss, Pointwise, softmax_cross_entropy
from jaxfed.training.pseudo_label import MapClients, PseudoLabel

if TYPE_CHECKING:
    from jaxfed.models import Model

BatchStatistics = Literal["averaged", "local", "static"]


@dataclass(frozen=True)
class Training:
    """What is trained, on what, how; methods differ in how they put it together.

    Attributes:
        model: pure functions of a state.
        loss: what clients minimize; methods may wrap it.
        optimizer: learning rate -> the clients' optimizer, fresh in every round.
        learning_rate: rounds done -> the round's rate. Counted anew after `labeled_only_rounds`.
        batches: of labeled and pseudo-labeled examples.
        labeled_batches: where a round trains on given labels alone.
        aggregate: the server's step.
        weighting: a client's weight in the server's mean.
        pseudo_labels: name -> source of labels.
        batch_statistics: what becomes of BatchNorm's running statistics. While training, BatchNorm
            always uses its batch; running statistics matter where a model is evaluated or embeds.

            - "averaged": through the server with the parameters, in the same mean (XCLP's code).
            - "local": each client keeps its own (SiloBN) and embeds with them; the server has the mean
              of its last cohort, for evaluation only.
            - "static": nobody keeps any; after each round the cohort's clients measure the new model's
              on their data, and the server takes the mean (HeteroFL, SemiFL).
        labeled_only_rounds: stage 1; pseudo-labels begin after so many rounds.
        initial_model: where training starts; None: `model.init`.
        map_clients: how clients are executed.
        clients_multiple: the number of clients is padded to a multiple of this (devices).
        pointwise: l(logits, label), of which `loss` and methods' own losses are made.
        augment: random changes of a batch that keep its classes; `loss` has them built in.
        strong_augment: stronger ones, for methods that compare the two.
    """

    model: Model
    loss: Loss
    optimizer: Optimizer
    learning_rate: Callable[[jax.Array], jax.Array]
    batches: Batches
    labeled_batches: Batches
    aggregate: Aggregate
    weighting: Callable[[ClientData], jax.Array]
    pseudo_labels: Mapping[str, PseudoLabel]
    batch_statistics: BatchStatistics
    labeled_only_rounds: int
    initial_model: nnx.State | None
    map_clients: MapClients
    clients_multiple: int
    pointwise: Pointwise = softmax_cross_entropy
    augment: Augment | None = None
    strong_augment: Augment | None = None

    def with_states(self, model: Model, made: Callable[[nnx.State], nnx.State]) -> Training:
        """The same training of another model, whose states are `made` of the plain model's."""
        given = self.initial_model
        return replace(self, model=model, initial_model=None if given is None else made(given))

    def strong_augment_for(self, method: str) -> Augment:
        """The strong augmentation, which this method cannot do without.

        Raises:
            UsageError: there is none.
        """
        if self.strong_augment is None:
            raise UsageError(
                f"algorithm {method!r} compares two views of an example: "
                "training.strong_augmentation=() makes only one"
            )
        return self.strong_augment
