"""Sections of a config as dataclasses, which declare each key's type, default, allowed values and meaning.

    section_of(config, "training")          # TrainingSection(optimizer="sgd", ...), checked
    SECTIONS["training"]                    # the class

`jaxfed.config.base.get_config()`, `launch.run --help_keys` and `docs/keys.md` are made from these classes. A
default that a class of the library has too is read from that class. All others are those of the experiments
of XCLP's paper. Conditions between two keys of a section stand in its `__post_init__`; between two sections,
in `jaxfed.config.check`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict

from jaxfed.data import SCHEMES, Classes, Dirichlet, DirichletMixture, Table
from jaxfed.data.partitioning import Skew
from jaxfed.data.schemes import Rows
from jaxfed.errors import UsageError, section
from jaxfed.federation import evaluate
from jaxfed.federation.clock import Clock
from jaxfed.federation.execution import STRATEGIES
from jaxfed.federation.rounds import SAMPLINGS
from jaxfed.learners import LEARNERS
from jaxfed.models import MODELS
from jaxfed.models.model import DTYPES
from jaxfed.models.trainable import LoraFactors, Trainable
from jaxfed.paper_numbers import PAPER_TABLES
from jaxfed.settings import (
    Allowed,
    BelowOne,
    Count,
    CountOrZero,
    Described,
    Ge,
    Gt,
    Le,
    Lt,
    Not,
    Note,
    NotNegative,
    OneOf,
    Positive,
    Setting,
    Share,
    check,
    settings_of,
    when,
)
from jaxfed.training.aggregate import SECOND_MOMENTS, WEIGHTINGS
from jaxfed.training.local.augmentation import AUGMENTATIONS, compose
from jaxfed.training.local.batches import Batches, BatchScheme
from jaxfed.training.local.local_training import LEARNING_RATE, BetweenRounds
from jaxfed.training.local.losses import POINTWISE
from jaxfed.training.specification import SERVER_LEARNING_RATE, LabelWeights, Training, Uploads
from jaxfed.xclp.settings.parameters import MEASURES

MIXED = "mixed"  # value of learner.name: several learners, cycled over the clients
WITH_MOMENTUM = ("sgd", "rmsprop")
_KINDS = Literal["identity", "images", "standardized", "pretrained", "federated_features"]
_PRETRAINED = when("kind", "pretrained")
_BY_FEDAVG = when("kind", "federated_features")
_DIRICHLET = when("partition", "dirichlet", "dirichlet_mixture", "dirichlet_pairs")
_MIXTURE = when("partition", "dirichlet_mixture")
_VALIDATED = when("validation_fraction", Gt(0))
_ADAPTIVE = when("server_optimizer", *SECOND_MOMENTS)
_LORA = when("trainable", "lora")
_AT_SERVER = when("federation.labels_at", "server")
METHOD = Annotated[str, Allowed(bool, "names of methods, or of sections with the key `algorithm`")]
AUGMENTATION = Annotated[
    tuple[str, ...],
    Described(f"NAME or NAME:NUMBER[:NUMBER], names out of {', '.join(map(repr, AUGMENTATIONS))}"),
]


class Section:
    """Base of the sections: fields are checked when an object is made."""

    def __post_init__(self) -> None:
        check(self)

    def refused(self, key: str, wrong: str = "", allowed: str = "") -> UsageError:
        """Return the error for the value of a field."""
        return UsageError(wrong, key=key, value=getattr(self, key), allowed=allowed)


@dataclass(frozen=True, kw_only=True)
class Experiment(Section):
    """The experiment as a whole: methods, rounds, cohorts, evaluation.

    Attributes:
        seed: seed of the first repeat; repeat i has seed + i.
        num_repeats: number of repeats, each with a seed of its own.
        algorithm: main method.
        baselines: methods to compare with, on the same clients.
        rounds: number of rounds; a one-shot method over all clients always has one.
        cohort_size: clients that take part in a round.
        sampling: how a round's clients are drawn; 'proportional': with and without labels by their shares.
        evaluate_every: rounds between evaluations.
        evaluate_test: evaluate the test set at these rounds too, for curves; it selects nothing.
        checkpoint_every: rounds between checkpoints; 0: as often as they take at most 3 % of the time.
        paper_table: table of a paper to print beside the results.
    """

    seed: Annotated[int, Ge(0), Le(2**31 - 1)] = 0
    num_repeats: Count = 5
    algorithm: METHOD = "xclp"
    baselines: tuple[METHOD, ...] = ("per_client_lp", "pooled_lp", "client_knn")
    rounds: Count = 1
    cohort_size: Annotated[int, Ge(0), Note("0 is all clients")] = 0
    sampling: Annotated[str, OneOf(SAMPLINGS), when("cohort_size", Gt(0))] = "uniform"
    evaluate_every: Annotated[int, Ge(0), Note("0 is after the last round only")] = 0
    evaluate_test: bool = False
    checkpoint_every: Annotated[int, Ge(0), Note("0 is by elapsed time")] = 0
    paper_table: Annotated[str, OneOf(("", *PAPER_TABLES))] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({self.algorithm, *self.baselines}) <= len(self.baselines):
            wrong = f"a method is named twice, with algorithm={self.algorithm!r}"
            raise self.refused("baselines", wrong, "name each once")


@dataclass(frozen=True, kw_only=True)
class DatasetSection(Section):
    """The data set of the clients' examples.

    Attributes:
        name: name of a data set, or path of an .npz, CSV or Parquet file or of a folder of images or tables.
        root: folder of the data sets; '': $JAXFED_DATA, else TFDS's default.
        label_key: TFDS feature or table's column that holds the label; '': the usual one.
        client_key: table's column or .npz array with each row's client; 'file': each file is a client.
        drop: a table's columns that are not features.
        image_size: pixels a side of images in a folder or table.
        train_size, test_size: number of examples to use, stratified by class.
        unlabeled_size: number of examples without a label to use, in addition to train_size.
        balanced: take the same number of examples of each class.
        pooled: pool the set's training and test split, and draw a new test split.
        test_fraction: share of the labeled examples held out for testing, of a set without a test split.
        test_rows: test rows of a set without a test split: drawn by each repeat, or the same for all.
        validation_fraction: share of the training examples for validation, which selects models.
        validation_measure: measure on validation examples that selects models.
    """

    name: Annotated[str, Allowed(bool, "the name or path of a data set")] = ""
    root: str = ""
    label_key: str = ""
    client_key: str = ""
    drop: Annotated[tuple[str, ...], Described("names of columns, or () for none")] = ()
    image_size: Annotated[int, Ge(0), Note("0 is their own size")] = 0
    train_size: Annotated[int, Ge(0), Note("0 is all")] = 0
    test_size: Annotated[int, Ge(0), Note("0 is all")] = 0
    unlabeled_size: Annotated[int, Ge(0), Note("0 counts them in train_size")] = 0
    balanced: bool = False
    pooled: bool = False
    test_fraction: Annotated[float, Gt(0), Lt(1), when("test_size", 0)] = 0.2
    test_rows: Literal["by_repeat", "shared"] = "by_repeat"
    validation_fraction: BelowOne = 0.0
    validation_measure: Annotated[str, OneOf(evaluate.MEASURES), _VALIDATED] = "accuracy"


@dataclass(frozen=True, kw_only=True)
class PreprocessingSection(Section):
    """Preprocessing of all examples, the same for all clients.

    Attributes:
        kind: preprocessing of all examples.
        rounds: FedAvg rounds that train the model whose features are used.
        cohort_size: clients in each of these rounds.
        network: 'efficientnet_lite0', 'efficientnet_b0', or a folder with a Vision Transformer's weights.
        image_size: pixels a side of this network's input.
        components: principal components of the training images' features that are kept.
        views: weak, and as many strong, views of each image whose features are computed before training.
    """

    kind: _KINDS = "identity"
    rounds: Annotated[int, Ge(0), Note("0 keeps training.initial_model as it is"), _BY_FEDAVG] = 0
    cohort_size: Annotated[int, Ge(0), Note("0 is all clients"), _BY_FEDAVG] = 0
    network: Annotated[str, _PRETRAINED] = "efficientnet_lite0"
    image_size: Annotated[int, Ge(0), Note("0 is the network's own"), _PRETRAINED] = 0
    components: Annotated[int, Ge(0), Note("0 keeps all features"), _PRETRAINED] = 0
    views: Annotated[int, Ge(0), Note("0 augments nothing"), _PRETRAINED] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.views and self.kind != "pretrained":
            wrong = f"views have features of preprocessing.kind='pretrained', not {self.kind!r}"
            raise self.refused("views", wrong, "use 0")


@dataclass(frozen=True, kw_only=True)
class FederationSection(Section):
    """The clients: their number, their shares of the examples and of the labels, and public examples.

    Attributes:
        num_clients: number of clients.
        partition: scheme by which examples are distributed to clients.
        dirichlet_alpha: concentration of the Dirichlet distribution; small values make clients unlike.
        dirichlet_alpha_rest: concentration of the second draw.
        classes_per_client: number of classes that each client holds.
        table: class shares of each type of client, one row a type; the default is FedMatch's ten types.
        min_size: smallest number of examples of a client, without new points.
        labeled_fraction: share of each labeled client's examples that have a label.
        num_labeled: labels of all clients together.
        labeled_per_class: labels of each class at each labeled client.
        num_labeled_clients: number of clients with labels, the first ones.
        skew: examples that follow the scheme; 'independent': labeled and unlabeled ones follow two draws.
        labels_at: holder of the labels; 'server': all of them, drawn before the rest is distributed.
        public_size: unlabeled examples that everybody has.
        own_size: training examples distributed to clients.
        public_labeled: public examples keep their labels, which everybody has (FedMD).
        reveal_labels: reveal all labels once examples are distributed: full supervision.
        test: holder of the test examples: clients (as new points) or nobody (central).
        graph: training points in XCLP's graph (its Table 3).
        left_out_client: client that gives no labels and whose points are new (XCLP, Table 2).
    """

    num_clients: Annotated[int, Ge(0), Note("0 (with 'natural') is one a client id")] = 10
    partition: Annotated[str, OneOf(SCHEMES)] = "iid"
    dirichlet_alpha: Annotated[Positive, _DIRICHLET] = Dirichlet.alpha
    dirichlet_alpha_rest: Annotated[Positive, _MIXTURE] = DirichletMixture.alpha_rest
    classes_per_client: Annotated[Count, when("partition", "classes_per_client")] = (
        Classes.per_client
    )
    table: Annotated[Rows, when("partition", "table")] = Table.rows
    min_size: CountOrZero = 0
    labeled_fraction: Annotated[Share, when("num_labeled", 0), when("labeled_per_class", 0)] = 0.1
    num_labeled: Annotated[int, Ge(0), Note("0 leaves it to labeled_fraction")] = 0
    labeled_per_class: Annotated[int, Ge(0), Note("0 leaves it to labeled_fraction")] = 0
    num_labeled_clients: Annotated[int, Ge(0), Note("0 is all")] = 0
    skew: Annotated[Skew, when("partition", Not("iid"))] = "both"
    labels_at: Literal["clients", "server"] = "clients"
    public_size: CountOrZero = 0
    own_size: Annotated[int, Ge(0), Note("0 is all that are not public")] = 0
    public_labeled: bool = False
    reveal_labels: bool = False
    test: Literal["clients", "central"] = "clients"
    graph: Literal["labeled+unlabeled", "labeled"] = "labeled+unlabeled"
    left_out_client: Annotated[int, Ge(-1), Note("-1 is none")] = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_clients == 0 and self.partition != "natural":
            wrong = f"needs partition='natural', not {self.partition!r}"
            raise self.refused("num_clients", wrong, "use integers from 1 on")
        if self.num_labeled and self.labeled_per_class:
            wrong = f"does not go with labeled_per_class={self.labeled_per_class}"
            raise self.refused("num_labeled", wrong, "use 0")
        for key in ("num_labeled_clients", "reveal_labels", "left_out_client", "graph"):
            if self.labels_at == "server" and getattr(self, key) != getattr(FederationSection, key):
                wrong = "with labels_at='server' clients have no labels"
                raise self.refused(key, wrong, f"use {getattr(FederationSection, key)!r}")
        if self.public_labeled and not self.public_size:
            allowed = "set a public_size above 0"
            raise self.refused("public_labeled", "there are no public examples", allowed)


@dataclass(frozen=True, kw_only=True)
class SelectionSection(Section):
    """Choice of one-shot methods' settings; `selection.candidates.METHOD.KEY` lists values to try.

    Attributes:
        settings: settings of one-shot methods: the config's, or cross-validated over labeled points.
        measure: measure that cross-validation maximizes.
    """

    settings: Literal["given", "cross_validated"] = "given"
    measure: Annotated[str, OneOf(MEASURES), when("settings", "cross_validated")] = "accuracy"


@dataclass(frozen=True, kw_only=True)
class ModelSection(Section):
    """The network; the other keys of the section are options of its factory.

    Attributes:
        name: name of the network, on which the other keys of the section depend.
    """

    name: Annotated[str, OneOf(MODELS)] = "mlp"


@dataclass(frozen=True, kw_only=True)
class TrainingSection(Section, Uploads, BetweenRounds):
    """Training of a network: local steps, the server's step, rounds.

    Attributes:
        optimizer: clients' optimizer.
        learning_rate: clients' learning rate.
        schedule: learning rate over rounds.
        schedule_rounds: rounds until a cosine reaches 0.
        momentum: momentum of clients' SGD.
        nesterov: Nesterov's momentum.
        weight_decay: weight decay of clients' optimizer.
        epochs: local epochs in a round.
        local_steps: local steps in a round, in place of epochs.
        batches: 'paired': labeled and pseudo-labeled examples in each batch; 'joint': mixed at random.
        batch_size: largest batch, with 'paired' of labeled examples.
        unlabeled_ratio: unlabeled examples for each labeled one of a batch.
        loss: loss of an example.
        class_weights: weight of each class in the loss; (): all alike.
        augmentation: augmentations, in order.
        strong_augmentation: strong augmentations, of methods that compare two views.
        weighting: clients' weights in the mean; 'method': those of the method's paper.
        server_optimizer: server's optimizer.
        server_learning_rate: server's learning rate.
        server_momentum: momentum of server_optimizer='sgd' (FedAvgM).
        server_beta1, server_beta2, server_tau: constants of adaptive server optimizers.
        server_epochs: server's epochs on labels that it holds.
        server_batch_size: largest batch of the server.
        labeled_only_rounds: first rounds (stage 1), which train on given labels alone.
        initial_model: WORKDIR/states/METHOD-{repeat} (-last: the last state) of a run, or 'pretrained'.
        trainable: part of the network that is trained, sent and stored (`jaxfed.models.trainable`).
        lora_rank: r of the low-rank update A B of each dense layer.
        lora_alpha: the update's factor is alpha / rank.
        lora_factors: factors that are trained; 'b': A stays as drawn, and means of A B are exact.
    """

    optimizer: Literal["sgd", "adam", "rmsprop", "adagrad"] = "sgd"
    learning_rate: Positive = LEARNING_RATE
    schedule: Literal["constant", "cosine"] = "constant"
    schedule_rounds: Annotated[int, Ge(0), Note("0 is all rounds"), when("schedule", "cosine")] = 0
    momentum: Share = 0.0
    nesterov: bool = False
    weight_decay: Share = 0.0
    epochs: Annotated[Count, when("local_steps", 0)] = 5
    local_steps: Annotated[int, Ge(0), Note("0 is training.epochs epochs")] = Batches.steps
    batches: BatchScheme = "paired"
    batch_size: Annotated[int, Ge(0), Note("0 is all that a client has")] = 50
    unlabeled_ratio: Annotated[Count, when("batches", "paired")] = Batches.unlabeled_ratio
    loss: Annotated[str, OneOf(POINTWISE)] = "cross_entropy"
    class_weights: Annotated[
        tuple[Positive, ...], Described("one positive number a class, or ()")
    ] = ()
    augmentation: AUGMENTATION = ()
    strong_augmentation: AUGMENTATION = ()
    weighting: Annotated[str, OneOf(("method", *WEIGHTINGS))] = "method"
    server_optimizer: Annotated[str, OneOf(("sgd", *SECOND_MOMENTS))] = "sgd"
    server_learning_rate: Positive = SERVER_LEARNING_RATE
    server_momentum: Share = 0.0
    server_beta1: Annotated[BelowOne, _ADAPTIVE] = 0.9
    server_beta2: Annotated[BelowOne, _ADAPTIVE] = 0.99
    server_tau: Annotated[Positive, _ADAPTIVE] = 0.001
    server_epochs: Annotated[Count, _AT_SERVER] = 5
    server_batch_size: Annotated[int, Ge(0), Note("0 is all that the server has"), _AT_SERVER] = 50
    labeled_only_rounds: CountOrZero = Training.labeled_only_rounds
    initial_model: str = ""
    trainable: Trainable = "all"
    lora_rank: Annotated[Count, _LORA] = 8
    lora_alpha: Annotated[Positive, _LORA] = 16.0
    lora_factors: Annotated[LoraFactors, _LORA] = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, role in (("momentum", "optimizer"), ("server_momentum", "server_optimizer")):
            if getattr(self, key) and getattr(self, role) not in WITH_MOMENTUM:
                raise self.refused(key, f"{role}={getattr(self, role)!r} has no momentum", "use 0")
        if self.nesterov and not self.momentum:
            raise self.refused("nesterov", allowed="set a momentum above 0")
        for key in ("augmentation", "strong_augmentation"):
            try:
                compose(getattr(self, key))
            except UsageError as error:
                raise error.renamed(key) from None


@dataclass(frozen=True, kw_only=True)
class LearnerSection(Section):
    """The learner of every client, in methods with a model at each client.

    Attributes:
        name: learner of each client in methods that share labels; its keys are learner.NAME.KEY.
        names: learners of name='mixed', cycled over the clients.
    """

    name: Annotated[str, OneOf(ChainMap({MIXED: None}, LEARNERS))] = "network"
    names: tuple[Annotated[str, OneOf(LEARNERS)], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.name == MIXED) != bool(self.names):
            allowed = "list learners" if self.name == MIXED else "use ()"
            raise self.refused("names", f"learner.name={self.name!r}", allowed)


@dataclass(frozen=True, kw_only=True)
class PseudoLabelSection(Section, LabelWeights):
    """Pseudo-labels of methods that train.

    Attributes:
        augmented_features: make the graph of augmented examples, as in XCLP's code.
    """

    augmented_features: bool = False


@dataclass(frozen=True, kw_only=True)
class AuditSection(Section):
    """Membership inference against the methods of a run.

    Attributes:
        rounds: rounds whose messages are attacked; (): the last.
        members: labeled examples of each client whose membership is inferred.
        population: held-out examples that the attacker knows as non-members.
        shadows: number of shadow models that the attacker trains; 0: none.
    """

    rounds: Annotated[
        tuple[Count, ...], Described("integers from 1 on, or () for the last round")
    ] = ()
    members: Annotated[int, Ge(0), Note("0 is all of a client's labels")] = 0
    population: Count = 200
    shadows: Annotated[
        int, Allowed(lambda number: number == 0 or number >= 4, "0 for none, or integers from 4 on")
    ] = 64


@dataclass(frozen=True, kw_only=True)
class ExecutionSection(Section):
    """Execution of a run: devices, precision, memory, processes. It changes no result beyond rounding.

    Attributes:
        strategy: how clients are mapped to devices; 'shard_map': over all devices, with XCLP's graph.
        precision: number type in which networks compute.
        workers: processes for fitting estimators; 0: none.
        compilation_cache: folder of compiled programs, 'auto' or 'off'.
        plots: draw plots at the end; launch.report draws them as well.
    """

    strategy: Annotated[str, OneOf(("auto", *STRATEGIES))] = "auto"
    precision: Annotated[str, OneOf(DTYPES)] = "float32"
    workers: Annotated[int, Ge(0), Le(1024), Note("0 is none")] = 0
    compilation_cache: Annotated[str, Allowed(bool, "'auto', 'off' or a folder")] = "auto"
    plots: bool = True


@dataclass(frozen=True, kw_only=True)
class Deployment(Section):
    """Limits within which the server of a network waits for its clients; a simulation does not read them.

    Attributes:
        quorum: smallest share of a stage's clients whose answers are enough; with fewer the server stops.
        deadline: seconds that clients have for one stage; later answers are refused.
        wait_for_nodes: seconds that the server waits for all clients before its first round.
        largest_norm: largest Euclidean norm of a client's contribution to the server's means.
    """

    quorum: Annotated[float, Gt(0), Le(1)] = 0.5
    deadline: Positive = 600.0
    wait_for_nodes: NotNegative = 300.0
    largest_norm: Positive = 1000000.0


SECTIONS: dict[str, type] = {
    "": Experiment,
    "dataset": DatasetSection,
    "preprocessing": PreprocessingSection,
    "federation": FederationSection,
    "selection": SelectionSection,
    "model": ModelSection,
    "training": TrainingSection,
    "learner": LearnerSection,
    "pseudo_label": PseudoLabelSection,
    "clock": Clock,
    "audit": AuditSection,
    "execution": ExecutionSection,
    "deployment": Deployment,
}
"""Section -> class; the section "" has the keys outside of sections."""


@cache
def shared_settings() -> Mapping[str, Setting]:
    """Return key -> setting of all keys in `SECTIONS`."""
    return {
        f"{name}.{key}".lstrip("."): one
        for name, kind in SECTIONS.items()
        for key, one in settings_of(kind).items()
    }


def section_of(config: ConfigDict, name: str) -> Any:
    """Return a section of a config as a checked object of its class; errors name the keys of the config."""
    kind, values = SECTIONS[name], config[name] if name else config
    settings = {key: values[key] for key in settings_of(kind)}
    with section(f"config.{name}" if name else "config", tuple(settings)):
        return kind(**settings)
