"""The training specification shared by all methods that train a model, chosen once for an experiment.

Training(model)                                 # SGD at 0.1, an epoch a round, batches of 32
Training(model, local=LocalTraining(optimizer=optax.adam, batches=Batches("joint", size=10, epochs=5)))

Four values say what a method needs to know: how a client trains (`LocalTraining`), what the server does
(`ServerTraining`), where labels come from (`LabelSources`), and how it is executed (`ClientExecution`).

A method's `pseudo_label` is the name of a source of labels:

    LabelSources(confidence="logits")(model, execution)    # {"none": ..., "network": ..., ...}

This repository has its own, and others can be registered:

    @PSEUDO_LABELS.register("mylabels")
    def mylabels(parts, *, threshold=0.9): ...      # LabelParts -> PseudoLabel; keywords: config.mylabels
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.data.given_examples import pair_of
from jaxfed.errors import UsageError
from jaxfed.federation.execution import ClientExecution, Execution, MapClients
from jaxfed.federation.method import labels_elsewhere
from jaxfed.models.model import Model
from jaxfed.registry import Registry
from jaxfed.settings import CountOrZero, Described, check, choose_one_of, when
from jaxfed.training.aggregate import WEIGHTINGS, Aggregate, Weighting, by_examples
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.local.losses import Augment, Loss, weighted_loss
from jaxfed.training.pseudo_labels import pseudo_label
from jaxfed.training.pseudo_labels.pseudo_label import Confidence, Embed, PseudoLabel, embedding
from jaxfed.xclp.settings.parameters import Parameters, Propagation

if TYPE_CHECKING:
    from jaxfed.federation.clients import Federation


class LabelParts(NamedTuple):
    """Arguments of a registered source of labels.

    Fields:
        model: pure functions of a state.
        embed: features of a cohort's examples, each client's by its own model.
        map_clients: how clients are executed.
        num_classes: C; 0 if it is not known: without a config, and without parameters of own sources.
        execution: where and how visibly the host computes.
    """

    model: Model
    embed: Embed
    map_clients: MapClients
    num_classes: int
    execution: Execution


BY_XCLP = ("xclp", "xclp_head", "xclp_prototypes")  # over one graph of the cohort
LABELING_NOTHING = ("none", "unlabeled")
BUILT_IN = (*LABELING_NOTHING, *BY_XCLP, "per_client_lp", "network", "teacher")
OF_ONE_EXAMPLE = (*LABELING_NOTHING, "network", "teacher")  # label each example independently
BY_OWN_LABELS = ("per_client_lp", "xclp_prototypes")  # use what each client makes of its own labels
WITHIN_CLIENTS = ("none", "per_client_lp")  # give a client without labels none
AT_CLIENTS = ("none", "unlabeled", "network", "per_client_lp")  # need no other client, no teacher
PSEUDO_LABELS: Registry[Callable[..., PseudoLabel]] = Registry(
    "source of labels", {}, reserved=BUILT_IN
)


def settings_section(source: str) -> str:
    """Return a config's section with the settings of a source: mostly of its own name."""
    return "xclp" if source in BY_XCLP else source


def source_names() -> tuple[str, ...]:
    """Return the names of all sources, registered ones last."""
    return *BUILT_IN, *PSEUDO_LABELS.from_outside()


def check_source(name: str, known: Collection[str] | None = None) -> None:
    """Raise a UsageError if `pseudo_label` is none of the `known` sources; by default, all are known."""
    names = source_names() if known is None else known
    if name not in names:
        raise UsageError(key="pseudo_label", value=name, allowed=choose_one_of(names))


class _Sources(Mapping[str, PseudoLabel]):
    def __init__(self, names: Sequence[str], make: Callable[[str], PseudoLabel]) -> None:
        self._names, self._make = names, cache(make)

    def __getitem__(self, name: str) -> PseudoLabel:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, kw_only=True)
class LabelWeights:
    """Weights of pseudo-labels.

    Attributes:
        confidence: weight of the network's own labels; XCLP's code has 'logits'.
        class_weights: balance the classes of pseudo-labels, as in XCLP's code.
    """

    confidence: Confidence = "softmax"
    class_weights: bool = False


@dataclass(frozen=True)
class LabelSources(LabelWeights):
    """Sources of a round's labels: their settings, and the sources by name for a model.

    Attributes:
        augment: changes examples before features are computed.
        xclp_parameters: of XCLP's labels; without them there is no source "xclp", "xclp_head" (the same with
            `head="ridge"`) or "xclp_prototypes".
        own_parameters: of label propagation inside each client; without them there is no source
            "per_client_lp".
        others: keywords of registered sources.
        num_classes: C, for registered sources; 0: that of the parameters, if there are some.
    """

    augment: Augment | None = None
    xclp_parameters: Parameters | None = None
    own_parameters: Propagation | None = None
    others: Mapping[str, Mapping[str, Any]] | None = None
    num_classes: int = 0

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, model: Model, execution: ClientExecution) -> Mapping[str, PseudoLabel]:
        """Return all sources for the features and predictions of one model."""
        by_xclp = () if self.xclp_parameters is None else BY_XCLP
        within_clients = () if self.own_parameters is None else ("per_client_lp",)
        names = ("none", "unlabeled", "network", "teacher", *by_xclp, *within_clients)
        return _Sources(
            (*names, *PSEUDO_LABELS.from_outside()),
            lambda name: self._source(name, model, execution),
        )

    def _source(self, name: str, model: Model, execution: ClientExecution) -> PseudoLabel:
        if name == "none":
            return pseudo_label.labeled_only
        if name == "unlabeled":
            return pseudo_label.with_unlabeled
        embed = embedding(model, execution.map_labeling, augment=self.augment)
        if name in ("network", "teacher"):
            network = pseudo_label.network_labels(model, embed, confidence=self.confidence)
            return network if name == "network" else pseudo_label.from_teacher(network)
        if name in BUILT_IN:
            return self._propagated(name, embed, execution)
        both = (self.xclp_parameters, self.own_parameters)
        num_classes = self.num_classes or max((p.num_classes for p in both if p), default=0)
        parts = LabelParts(model, embed, execution.map_labeling, num_classes, execution.host)
        return PSEUDO_LABELS[name](parts, **(self.others or {}).get(name, {}))

    def _propagated(self, name: str, embed: Embed, execution: ClientExecution) -> PseudoLabel:
        from jaxfed.training.pseudo_labels import propagated_labels as by

        within_clients = name == "per_client_lp"
        source: PseudoLabel
        parameters: Any = self.own_parameters if within_clients else self.xclp_parameters
        num_classes = parameters.num_classes
        if within_clients:
            source = by.per_client_lp_labels(embed, parameters, execution.map_labeling)
        elif name != "xclp_prototypes":
            chosen = parameters if name == "xclp" else replace(parameters, head="ridge")
            source = by.XclpLabels(by.all_examples(embed), chosen, execution.host)
        else:
            points = by.with_prototypes(embed, num_classes)
            source = by.XclpLabels(points, parameters, execution.host)
        if not self.class_weights:
            return source
        return pseudo_label.class_weighted(source, num_classes, within_clients=within_clients)


SERVER_LEARNING_RATE = 1.0  # the new model is the mean of the clients' models
UNREAD_BY_LEARNERS = ("strong_augment", "weighting", "aggregate")  # by separate networks of clients
_BATCHES_OF_CLIENTS: Any = None  # computed by `Training`


@dataclass(frozen=True, kw_only=True)
class Uploads:
    """Sums of clients' updates, and who leaves them.

    Attributes:
        sums: how the server gets the clients' mean; 'masked_resilient': as a sum under masks that clients
            may leave at any stage, and no client's model (`jaxfed.training.round.masked_sums`).
        presence: clients that leave the sum in every round, as '3@upload' (`jaxfed.training.consensus`).
    """

    sums: Literal["plaintext", "masked_resilient"] = "plaintext"
    presence: Annotated[
        tuple[str, ...], Described("'CLIENT@STAGE'"), when("sums", "masked_resilient")
    ] = ()


@dataclass(frozen=True)
class ServerTraining(Uploads):
    """The server's step from the clients' updates, and its training on labels of its own.

    Attributes:
        aggregate: the server's step; None: FedAvg's (`jaxfed.training.round.round.server_optimizer` of SGD
            with rate 1).
        weighting: a client's weight in the server's mean, a number from 0 on. None: that of the method's
            paper (`jaxfed.federation.method`), by examples for a method that declares none.
        examples: x [n_s, ...] and labels int [n_s] that the server holds (`Federation.server_examples`);
            None: labels are at clients.
        batches: of the server's own training; by default `LocalTraining.labeled_batches`.
    """

    aggregate: (
        Annotated[Aggregate, Described("an Aggregate, such as server_optimizer(optax.sgd(1.0))")]
        | None
    ) = None
    weighting: (
        Annotated[Weighting, Described("a function of a client's data, such as by_examples")] | None
    ) = None
    examples: tuple[np.ndarray, np.ndarray] | None = None
    batches: Batches = _BATCHES_OF_CLIENTS

    def __post_init__(self) -> None:
        if self.examples is not None:
            pair = pair_of(self.examples, "ServerTraining.examples", is_labeled=True)
            object.__setattr__(self, "examples", pair)
        check(self)

    @property
    def weigh(self) -> Weighting:
        """The weighting in use."""
        return self.weighting or by_examples

    def require_labels(self) -> None:
        """Raise a UsageError if the server has no labels."""
        if self.examples is None:
            raise labels_elsewhere("server", key="examples", owner="ServerTraining", value=None)


@dataclass(frozen=True)
class Training:
    """Training specification: a model, and how clients and server train it on which labels.

    Methods combine these parts in different ways.

    Attributes:
        model: pure functions of a state.
        local: how a client trains.
        server: what the server does.
        labels: model, execution -> {name: source of labels}; by default the sources that need no settings:
            "none", "unlabeled", "network" and "teacher".
        execution: how it is executed.
        labeled_only_rounds: number of rounds of stage 1; pseudo-labels begin after them.
        initial_model: the model that training starts from; None: `model.init`.
    """

    model: Model
    local: LocalTraining = field(default_factory=LocalTraining)
    server: ServerTraining = field(default_factory=ServerTraining)
    labels: Annotated[
        Callable[[Model, ClientExecution], Mapping[str, PseudoLabel]],
        Described("LabelSources(...), or a function of a model and its execution"),
    ] = field(default_factory=LabelSources)
    execution: ClientExecution = field(default_factory=ClientExecution)
    labeled_only_rounds: CountOrZero = 0
    initial_model: (
        Annotated[nnx.State, Described("a state of the model, as `model.init` makes")] | None
    ) = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, Model):
            raise UsageError(
                f"Training: model is a {type(self.model).__name__}; from_flax(module, input_shape) makes a "
                "Model of a Flax module"
            )
        check(self)
        if self.server.batches is None:
            batches = self.local.labeled_batches
            object.__setattr__(self, "server", replace(self.server, batches=batches))

    @property
    def loss(self) -> Loss:
        """The clients' loss, from `local.pointwise` and `local.augment`; methods may wrap it."""
        return weighted_loss(self.model, augment=self.local.augment, pointwise=self.local.pointwise)

    @cached_property
    def pseudo_labels(self) -> Mapping[str, PseudoLabel]:
        """The sources of labels for this model, by name."""
        return self.labels(self.model, self.execution)

    def read_by(self, unread: Collection[str], weighting: str | None = None) -> Training:
        """Return the training as a method reads it.

        Args:
            unread: fields of `local` and `server` that it does not read: they get their defaults.
            weighting: key of `WEIGHTINGS`, used if the training has no weighting; None: leave it out.
        """
        local, server = (
            {each.name: each.default for each in fields(part) if each.name in unread}
            for part in (self.local, self.server)
        )
        read = self.with_local(**local).with_server(**server)
        if weighting is None or read.server.weighting is not None:
            return read
        return read.with_server(weighting=WEIGHTINGS[weighting])

    def with_local(self, **changes: Any) -> Training:
        """Return the same training with these fields of `local` changed."""
        return replace(self, local=replace(self.local, **changes))

    def with_server(self, **changes: Any) -> Training:
        """Return the same training with these fields of `server` changed."""
        return replace(self, server=replace(self.server, **changes))

    def with_states(self, model: Model, made: Callable[[nnx.State], nnx.State]) -> Training:
        """Return the same training of another model; `made` maps the plain model's states to its states."""
        start = self.initial_model
        return replace(self, model=model, initial_model=None if start is None else made(start))


def num_outputs(
    apply: Callable[[Any, jax.Array], jax.Array], state: Any, federation: Federation
) -> int:
    """Return the number of outputs of a network, or a classifier, for the clients' examples."""
    x = jax.ShapeDtypeStruct((1, *federation.x.shape[1:]), jnp.float32)
    try:
        return int(jax.eval_shape(apply, state, x).shape[-1])
    except (TypeError, ValueError) as error:
        line = " ".join(str(error).split())[:300]
        raise UsageError(
            f"the network does not take examples of {federation.x.shape[1:]}: {line}"
        ) from error
