"""Settings of methods that train: the network, local and server steps, pseudo-labels, learners."""

from __future__ import annotations

import math
from collections.abc import Collection
from inspect import signature
from typing import Any, get_args

from jaxfed.config.build.optimizers import OPTIMIZERS, SCHEDULES, SERVER_OPTIMIZERS
from jaxfed.config.learner_section import MIXED
from jaxfed.config.schema.setting import BELOW_ONE, SWITCH, TEXT, Setting, are_texts, in_section
from jaxfed.federation.clock.settings import Asynchrony
from jaxfed.learners import LEARNERS
from jaxfed.models import MODELS
from jaxfed.rules import NOT_NEGATIVE, POSITIVE, SHARE, Rule, at_least, one_of
from jaxfed.training.local.augmentation import AUGMENTATIONS
from jaxfed.training.local.batches import Batches, BatchScheme
from jaxfed.training.local.local_training import (
    LEARNING_RATE,
    BatchStatistics,
    ClientOptimizer,
    LocalTraining,
)
from jaxfed.training.local.losses import POINTWISE
from jaxfed.training.pseudo_labels.label_sources import LabelSources
from jaxfed.training.pseudo_labels.pseudo_label import Confidence
from jaxfed.training.server.aggregate import WEIGHTINGS
from jaxfed.training.server.server_optimizers import adaptive
from jaxfed.training.server.server_training import SERVER_LEARNING_RATE
from jaxfed.training.specification import Training


def are_numbers(values: Collection[Any]) -> bool:
    """True for a collection of finite numbers only."""
    return all(type(value) in (int, float) and math.isfinite(value) for value in values)


def learner_rules() -> dict[str, Rule]:
    """Return the rules of the two keys that name learners."""
    known = f"names out of {', '.join(map(repr, LEARNERS))}"

    def are_learners(value: tuple[str, ...]) -> bool:
        return are_texts(value) and set(value) <= set(LEARNERS)

    return {
        "learner.name": one_of([*LEARNERS, MIXED]),
        "learner.names": Rule(tuple, known, are_learners, list(LEARNERS)),
    }


AUGMENTATION = Rule(
    tuple,
    f"NAME or NAME:NUMBER[:NUMBER], names out of {', '.join(map(repr, AUGMENTATIONS))}",
    lambda value: (
        are_texts(value) and {name.partition(":")[0] for name in value} <= AUGMENTATIONS.keys()
    ),
)
# Defaults that a class or function of the library has too are read from it. The others are the experiments'
# of XCLP's paper: `Batches` and weights that differ from those of `LocalTraining` and `ServerTraining`.
_ADAPTIVE = {name: one.default for name, one in signature(adaptive).parameters.items()}
MODEL = {
    "model.name": Setting("mlp", one_of(MODELS), "network; its other keys depend on the name"),
}
TRAINING = in_section(
    "training",
    {
        "optimizer": Setting("sgd", one_of(OPTIMIZERS), "clients' optimizer"),
        "client_optimizer": Setting(
            LocalTraining.client_optimizer,
            one_of(get_args(ClientOptimizer)),
            "state of clients' optimizer: 'fresh' in every round, or 'kept' by each client",
        ),
        "learning_rate": Setting(LEARNING_RATE, POSITIVE, "clients' learning rate"),
        "schedule": Setting("constant", one_of(SCHEDULES), "learning rate over rounds"),
        "schedule_rounds": Setting(
            0, at_least(0, ", 0 is the experiment's rounds"), "rounds until a cosine reaches 0"
        ),
        "momentum": Setting(0.0, SHARE, "momentum of clients' SGD"),
        "nesterov": Setting(False, SWITCH, "Nesterov's momentum"),
        "weight_decay": Setting(0.0, SHARE, "weight decay of clients' optimizer"),
        "epochs": Setting(5, at_least(1), "local epochs in a round"),
        "local_steps": Setting(
            Batches.steps,
            at_least(0, ", 0 is training.epochs epochs"),
            "local steps in a round, in place of epochs",
        ),
        "batches": Setting(
            "paired",
            one_of(get_args(BatchScheme)),
            "'paired': labeled and pseudo-labeled examples in each batch; 'joint': mixed at random",
        ),
        "batch_size": Setting(
            50,
            at_least(0, ", 0 is all that a client has"),
            "largest batch, with 'paired' of labeled examples",
        ),
        "unlabeled_ratio": Setting(
            Batches.unlabeled_ratio,
            at_least(1),
            "unlabeled examples for each labeled one of a batch",
        ),
        "loss": Setting("cross_entropy", one_of(POINTWISE), "loss of an example"),
        "class_weights": Setting(
            (),
            Rule(
                tuple,
                "one positive number a class, or () for all alike",
                lambda value: are_numbers(value) and all(weight > 0 for weight in value),
            ),
            "weight of each class in the loss; (): all alike",
        ),
        "augmentation": Setting((), AUGMENTATION, "augmentations, in order"),
        "strong_augmentation": Setting(
            (), AUGMENTATION, "strong augmentations, of methods that compare two views"
        ),
        "weighting": Setting(
            "method",
            one_of(("method", *WEIGHTINGS)),
            "clients' weights in the mean; 'method': those of the method's paper; 'uniform' skips clients "
            "with nothing to train on",
        ),
        "server_optimizer": Setting("sgd", one_of(SERVER_OPTIMIZERS), "server's optimizer"),
        "server_learning_rate": Setting(SERVER_LEARNING_RATE, POSITIVE, "server's learning rate"),
        "server_momentum": Setting(0.0, SHARE, "momentum of server_optimizer='sgd' (FedAvgM)"),
        "server_beta1": Setting(
            _ADAPTIVE["beta1"], BELOW_ONE, "beta_1 of adaptive server optimizers"
        ),
        "server_beta2": Setting(
            _ADAPTIVE["beta2"], BELOW_ONE, "beta_2 of adaptive server optimizers"
        ),
        "server_tau": Setting(_ADAPTIVE["tau"], POSITIVE, "tau of adaptive server optimizers"),
        "server_epochs": Setting(5, at_least(1), "server's epochs on labels that it holds"),
        "server_batch_size": Setting(
            50, at_least(0, ", 0 is all that the server has"), "largest batch of the server"
        ),
        "batch_statistics": Setting(
            LocalTraining.batch_statistics,
            one_of(get_args(BatchStatistics)),
            "treatment of BatchNorm's statistics, which also count the examples that fill up a last batch",
        ),
        "concurrency": Setting(
            Asynchrony().concurrency,
            at_least(0, ", 0 is synchronous rounds"),
            "number of clients that train at a time in asynchronous rounds (FedBuff)",
        ),
        "staleness_exponent": Setting(
            Asynchrony().exponent,
            NOT_NEGATIVE,
            "exponent a by which asynchronous rounds scale model changes: (1 + staleness) ** -a",
        ),
        "labeled_only_rounds": Setting(
            Training.labeled_only_rounds,
            at_least(0),
            "first rounds (stage 1), which train on given labels alone",
        ),
        "training_cohort_size": Setting(
            Training.training_cohort_size,
            at_least(0, ", 0 is all"),
            "number of a cohort's clients that train; the others only take part in the labeling",
        ),
        "initial_model": Setting(
            "",
            TEXT,
            "WORKDIR/states/METHOD-{repeat} of an earlier run (with -last: its last state), or 'pretrained'",
        ),
    },
)
PSEUDO_LABEL = in_section(
    "pseudo_label",
    {
        "confidence": Setting(
            LabelSources.confidence,
            one_of(get_args(Confidence)),
            "weight of the network's own labels; XCLP's code has 'logits'",
        ),
        "class_weights": Setting(
            LabelSources.class_weights,
            SWITCH,
            "balance the classes of pseudo-labels, as in XCLP's code",
        ),
        "augmented_features": Setting(
            False, SWITCH, "make the graph of augmented examples, as in XCLP's code"
        ),
        "safeguard": Setting(
            "none",
            one_of(("none", "network")),
            "'network': keep propagated labels only where they beat the network on validation examples",
        ),
    },
)
_LEARNERS = learner_rules()
LEARNER = {
    "learner.name": Setting(
        "network",
        _LEARNERS["learner.name"],
        "model of each client in methods that share labels; learner.NAME has its own keys",
    ),
    "learner.names": Setting(
        (), _LEARNERS["learner.names"], "learners of name='mixed', cycled over the clients"
    ),
}
