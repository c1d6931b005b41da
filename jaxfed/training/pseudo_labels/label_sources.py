"""The sources of pseudo-labels by name; a method's `pseudo_label` is one of these names.

    LabelSources(confidence="logits")(model, execution)    # {"none": ..., "network": ..., ...}

This repository has its own, and others can be registered:

    @PSEUDO_LABELS.register("mylabels")
    def mylabels(parts, *, threshold=0.9): ...      # LabelParts -> PseudoLabel; keywords: config.mylabels
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxfed.errors import UsageError
from jaxfed.federation.execution.client_map import MapClients
from jaxfed.federation.execution.settings import ClientExecution, Execution
from jaxfed.registry import Registry
from jaxfed.settings import check, choose_one_of
from jaxfed.training.local.losses import Augment
from jaxfed.training.pseudo_labels import pseudo_label
from jaxfed.training.pseudo_labels.pseudo_label import Confidence, Embed, PseudoLabel, embedding
from jaxfed.xclp.settings.parameters import Parameters, Propagation

if TYPE_CHECKING:
    from jaxfed.models import Model


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
OWN = (*LABELING_NOTHING, *BY_XCLP, "per_client_lp", "network", "teacher")
OF_ONE_EXAMPLE = (*LABELING_NOTHING, "network", "teacher")  # label each example independently
BY_OWN_LABELS = ("per_client_lp", "xclp_prototypes")  # use what each client makes of its own labels
WITHIN_CLIENTS = ("none", "per_client_lp")  # give a client without labels none
AT_CLIENTS = (
    "none",
    "unlabeled",
    "network",
    "per_client_lp",
)  # need no other client and no teacher
PSEUDO_LABELS: Registry[Callable[..., PseudoLabel]] = Registry("source of labels", {}, reserved=OWN)


def settings_section(source: str) -> str:
    """Return a config's section with the settings of a source: mostly of its own name."""
    return "xclp" if source in BY_XCLP else source


def source_names() -> tuple[str, ...]:
    """Return the names of all sources, registered ones last."""
    return *OWN, *PSEUDO_LABELS.from_outside()


def check_source(name: str, known: Collection[str] | None = None) -> None:
    """Raise a UsageError if `pseudo_label` is none of the `known` sources; by default, all are known."""
    names = source_names() if known is None else known
    if name not in names:
        raise UsageError(key="pseudo_label", value=name, allowed=choose_one_of(names))


class _Sources(Mapping[str, PseudoLabel]):
    """Sources by name, each of which is made when it is first looked up."""

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


@dataclass(frozen=True)
class LabelSources:
    """Sources of a round's labels: their settings, and the sources by name for a model.

    Attributes:
        confidence: of the network's own labels.
        augment: changes examples before features are computed.
        class_weights: multiply the weights of propagated labels by class.
        xclp_parameters: of XCLP's labels; without them there is no source "xclp", "xclp_head" (the same with
            `head="ridge"`) or "xclp_prototypes".
        own_parameters: of label propagation inside each client; without them there is no source
            "per_client_lp".
        others: keywords of registered sources.
        num_classes: C, for registered sources; 0: that of the parameters, if there are some.
    """

    confidence: Confidence = "softmax"
    augment: Augment | None = None
    class_weights: bool = False
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
        if name in OWN:
            return self._propagated(name, embed, execution)
        given = (self.xclp_parameters, self.own_parameters)
        num_classes = self.num_classes or max((p.num_classes for p in given if p), default=0)
        parts = LabelParts(model, embed, execution.map_labeling, num_classes, execution.host)
        source = PSEUDO_LABELS[name](parts, **(self.others or {}).get(name, {}))
        return pseudo_label.checked(source, name, num_classes)

    def _propagated(self, name: str, embed: Embed, execution: ClientExecution) -> PseudoLabel:
        from jaxfed.training.pseudo_labels import propagated_labels as by

        within_clients = name == "per_client_lp"
        source: PseudoLabel
        parameters: Any = self.own_parameters if within_clients else self.xclp_parameters
        num_classes = parameters.num_classes
        if within_clients:
            source = by.per_client_lp_labels(embed, parameters, execution.map_labeling)
        elif name != "xclp_prototypes":
            own = parameters if name == "xclp" else replace(parameters, head="ridge")
            source = by.XclpLabels(by.all_examples(embed), own, execution.host)
        else:
            points = by.with_prototypes(embed, num_classes)
            source = by.XclpLabels(points, parameters, execution.host)
        if not self.class_weights:
            return source
        return pseudo_label.class_weighted(source, num_classes, within_clients=within_clients)
