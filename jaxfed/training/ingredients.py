"""The training specification shared by all methods that train a model, chosen once for an experiment.

Training(model)                                 # SGD at 0.1, an epoch a round, batches of 32
Training(model, optimizer=optax.adam, batches=Batches("joint", size=10, epochs=5))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
import optax
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.client_map import client_map, fastest_strategy, is_one_cpu
from jaxfed.federation.core_each import fastest_apart
from jaxfed.federation.execution import HERE, Execution
from jaxfed.federation.sampling import Participation
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.local.local_update import Optimizer
from jaxfed.training.local.losses import (
    Augment,
    Loss,
    Pointwise,
    softmax_cross_entropy,
    weighted_loss,
)
from jaxfed.training.pseudo_labels.label_sources import label_sources
from jaxfed.training.pseudo_labels.pseudo_label import MapClients, PseudoLabel
from jaxfed.training.server.aggregate import Aggregate, by_examples, server_optimizer

if TYPE_CHECKING:
    from jaxfed.models import Model

BatchStatistics = Literal["averaged", "local", "static"]
ClientOptimizer = Literal["fresh", "kept"]


_OF_THE_OTHERS: Any = None  # a default computed from other fields
_RATE = optax.constant_schedule(0.1)
_BATCHES = Batches("joint", size=32, epochs=1)
_MEAN = server_optimizer(optax.sgd(1.0))  # the mean of the clients' models


@dataclass(frozen=True)
class Training:
    """Training specification: model, loss, optimizer, batches, aggregation and labels.

    Methods combine these parts in different ways.

    Attributes:
        model: pure functions of a state.
        loss: the clients' loss; methods may wrap it. By default the weighted loss of `model`,
            `pointwise` and `augment`.
        optimizer: learning rate -> the clients' optimizer.
        client_optimizer: treatment of its state (momentum, second moments) after a client's round.

            - "fresh": it is dropped; an optimizer starts anew in every round (FedAvg, and most papers).
            - "kept": each client keeps its own for its next round, across stages 1 and 2; the learning
              rate is still the round's. M clients keep M optimizer states: one more number per parameter
              for RMSprop, two for Adam, none for plain SGD. (ProtoFSSL's code has one optimizer for all
              clients, which train one after another; here a round's clients train side by side.)
        learning_rate: rounds done -> the round's rate. Counted anew after `labeled_only_rounds`.
        batches: of labeled and pseudo-labeled examples.
        labeled_batches: for rounds on given labels alone; by default `batches`.
        aggregate: the server's step.
        weighting: a client's weight in the server's mean.
        pseudo_labels: name -> source of labels; by default `pseudo_labels_of(model)`.
        pseudo_labels_of: the same for any model; by default the sources that need no settings: "none",
            "unlabeled", "network" and "teacher" (`jaxfed.training.pseudo_labels.label_sources` has all).
        batch_statistics: treatment of BatchNorm's running statistics. While training, BatchNorm
            always uses its batch; running statistics matter when a model is evaluated or embeds.

            - "averaged": through the server with the parameters, in the same mean (XCLP's code).
            - "local": each client keeps its own (SiloBN) and embeds with them; the server has the mean
              of its last cohort, for evaluation only.
            - "static": none are kept; after each round the cohort's clients measure the new model's
              on their data, and the server takes the mean (HeteroFL, SemiFL).
        labeled_only_rounds: number of rounds of stage 1; pseudo-labels begin after them.
        initial_model: the model that training starts from; None: `model.init`.
        map_clients: execution of clients within a round; by default the fastest for the present devices.
        clients_multiple: the number of clients is padded to a multiple of this (devices).
        map_apart: execution of clients that are independent of each other within a round (FedCT's networks),
            outside of `jax.jit`; None: by `map_clients`. By default `core_each` if one CPU's cores are
            devices and `map_clients` is not given.
        pointwise: l(logits, label), from which `loss` and methods' own losses are built.
        augment: random changes of a batch that keep its classes; `loss` includes them.
        strong_augment: stronger ones, for methods that compare the two.
        body: makes the model without its last layer, for methods that do not use that layer; None: `model`.
        num_classes: C, for methods that need it (ProtoFSSL).
        max_labels: the largest number of labels of a client, for the same methods; 0: they scan all examples.
        server: x [n_s, ...] and labels int [n_s] that the server holds (`Federation.server_examples`); None:
            labels are at clients.
        server_batches: of the server's own training; by default `labeled_batches`.
        execution: where the host computes, and the memory that a round may take.
        participation: how often clients take part, for noise that is fitted to a budget; None: unknown.
    """

    model: Model
    loss: Loss = _OF_THE_OTHERS
    optimizer: Optimizer = optax.sgd
    learning_rate: Callable[[jax.Array], jax.Array] = _RATE
    batches: Batches = _BATCHES
    labeled_batches: Batches = _OF_THE_OTHERS
    aggregate: Aggregate = _MEAN
    weighting: Callable[[ClientData], jax.Array] = by_examples
    pseudo_labels: Mapping[str, PseudoLabel] = _OF_THE_OTHERS
    batch_statistics: BatchStatistics = "averaged"
    labeled_only_rounds: int = 0
    initial_model: nnx.State | None = None
    map_clients: MapClients = _OF_THE_OTHERS
    clients_multiple: int = 1
    map_apart: MapClients | None = None
    pointwise: Pointwise = softmax_cross_entropy
    augment: Augment | None = None
    strong_augment: Augment | None = None
    body: Callable[[], Model] | None = None
    num_classes: int = 0
    max_labels: int = 0
    client_optimizer: ClientOptimizer = "fresh"
    pseudo_labels_of: Callable[[Model], Mapping[str, PseudoLabel]] = _OF_THE_OTHERS
    server: tuple[np.ndarray, np.ndarray] | None = None
    server_batches: Batches = _OF_THE_OTHERS
    participation: Participation | None = None
    execution: Execution = HERE

    def __post_init__(self) -> None:
        """Compute the fields that were left out from the others.

        Raises:
            UsageError: `model` is no `Model`, but a Flax module, say.
        """
        if not callable(getattr(self.model, "train_apply", None)):
            raise UsageError(
                f"Training: model is a {type(self.model).__name__}; from_flax(module, input_shape) makes a "
                "Model of a Flax module"
            )
        if self.map_clients is None:
            # It is not known here whether a round's clients share a CPU's cores evenly.
            strategy = "map" if is_one_cpu() else fastest_strategy()
            object.__setattr__(self, "map_clients", partial(client_map, strategy=strategy))
            if self.map_apart is None:
                object.__setattr__(self, "map_apart", fastest_apart())
            if strategy == "shard_map":
                object.__setattr__(self, "clients_multiple", jax.device_count())
        made = {
            "loss": lambda: weighted_loss(
                self.model, augment=self.augment, pointwise=self.pointwise
            ),
            "labeled_batches": lambda: self.batches,
            "server_batches": lambda: self.labeled_batches,
            "pseudo_labels_of": lambda: partial(label_sources, map_clients=self.map_clients),
            "pseudo_labels": lambda: self.pseudo_labels_of(self.model),
        }
        for name, make in made.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, make())

    def with_states(self, model: Model, made: Callable[[nnx.State], nnx.State]) -> Training:
        """Return the same training of another model; `made` maps the plain model's states to its states."""
        given = self.initial_model
        return replace(self, model=model, initial_model=None if given is None else made(given))

    def strong_augment_for(self, method: str) -> Augment:
        """Return the strong augmentation, which this method requires.

        Raises:
            UsageError: there is none.
        """
        if self.strong_augment is None:
            raise UsageError(
                f"{method!r} compares two views of an example",
                key="strong_augment",
                owner="Training",
                value=None,
                allowed="give a strong augmentation",
            )
        return self.strong_augment
