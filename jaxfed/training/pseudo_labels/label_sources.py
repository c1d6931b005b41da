"""The sources of pseudo-labels by name; a method's `pseudo_label` is one of these names.

    LabelSources(confidence="logits")(model, execution)    # {"none": ..., "network": ..., ...}

This repository has its own, and others can be registered:

    @PSEUDO_LABELS.register("mylabels")
    def mylabels(parts, *, threshold=0.9): ...      # LabelParts -> PseudoLabel; keywords: config.mylabels
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxfed.errors import UsageError
from jaxfed.federation.execution.settings import Execution
from jaxfed.registry import Registry
from jaxfed.settings import check, check_value, choose_one_of
from jaxfed.training.client_execution import ClientExecution
from jaxfed.training.local.losses import Augment
from jaxfed.training.pseudo_labels import pseudo_label
from jaxfed.training.pseudo_labels.pseudo_label import (
    Confidence,
    Embed,
    MapClients,
    PseudoLabel,
    PseudoLabels,
)

if TYPE_CHECKING:
    import jax

    from jaxfed import xclp
    from jaxfed.federation.cohort import Cohort
    from jaxfed.federation.communication import Communication
    from jaxfed.models import Model
    from jaxfed.training.server.server_state import ServerState
    from jaxfed.xclp import Parameters as _Parameters
    from jaxfed.xclp import Propagation as _Propagation
else:
    _Parameters = _Propagation = Any  # imported where some are given, and checked there


class UnknownClasses(UsageError):
    """The number of classes is not known to a source of labels that needs it."""


class LabelParts(NamedTuple):
    """Arguments of a registered source of labels.

    Fields:
        model: pure functions of a state.
        embed: features of a cohort's examples, each client's by its own model.
        map_clients: how clients are executed.
        known_classes: C; 0 if it is not known.
        execution: where and how visibly the host computes.
    """

    model: Model
    embed: Embed
    map_clients: MapClients
    known_classes: int
    execution: Execution

    @property
    def num_classes(self) -> int:
        """C.

        Raises:
            UnknownClasses: it is not known: without a config, and without parameters of own sources.
        """
        if not self.known_classes:
            raise UnknownClasses(
                "a source of labels needs the number of classes",
                key="num_classes",
                owner="LabelSources",
                value=0,
                allowed="give Training(labels=LabelSources(num_classes=...))",
            )
        return self.known_classes


SECTION_OF = {
    "xclp_prototypes": "xclp"
}  # in a config, for sources whose settings are in another source's section

OWN = ("none", "unlabeled", "xclp", "xclp_prototypes", "per_client_lp", "network", "teacher")
BY_OWN_LABELS = ("per_client_lp", "xclp_prototypes")  # use what each client makes of its own labels
PSEUDO_LABELS: Registry[Callable[..., PseudoLabel]] = Registry(
    "source of labels", {}, reserved=OWN, num_given=1
)


def source_names() -> tuple[str, ...]:
    """Return the names of all sources, registered ones last."""
    return *OWN, *PSEUDO_LABELS.from_outside()


def check_source(name: str, known: Collection[str] | None = None) -> None:
    """Check that a method's `pseudo_label` is one of the known sources; by default, of all.

    Raises:
        UsageError: it is not; it is a source that needs the number of classes, which is not known.
    """
    names = source_names() if known is None else known
    if name not in names:
        raise UsageError(key="pseudo_label", value=name, allowed=choose_one_of(names))
    if isinstance(known, Mapping) and isinstance(known[name], _Refused):
        raise known[name].error


def not_by_server(given: SimpleNamespace) -> None:
    """Check a method whose clients keep their networks, as `@method(together=)`.

    Raises:
        UsageError: its `pseudo_label` labels by the server's network.
    """
    if given.pseudo_label in ("network", "teacher"):
        raise UsageError(
            "the server has no trained network to label with",
            key="pseudo_label",
            value=given.pseudo_label,
            allowed="use 'none', or another source of labels",
        )


class _Refused(NamedTuple):
    """A source that cannot be made; an error only for a method that uses it."""

    error: UnknownClasses

    def __call__(
        self, state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        """Raise the error."""
        raise self.error


@dataclass(frozen=True)
class LabelSources:
    """Sources of a round's labels: their settings, and the sources by name for a model.

    Attributes:
        confidence: of the network's own labels.
        augment: changes examples before features are computed.
        class_weights: multiply the weights of propagated labels by class.
        xclp_parameters: of XCLP's labels; without them there is no source "xclp" or "xclp_prototypes".
        own_parameters: of label propagation inside each client; without them there is no source
            "per_client_lp".
        others: keywords of registered sources.
        num_classes: C, for registered sources; 0: that of the parameters, if there are some.
    """

    confidence: Confidence = "softmax"
    augment: Augment | None = None
    class_weights: bool = False
    xclp_parameters: _Parameters | None = None
    own_parameters: _Propagation | None = None
    others: Mapping[str, Mapping[str, Any]] | None = None
    num_classes: int = 0

    def __post_init__(self) -> None:
        """Check the types.

        Raises:
            UsageError: the first field of another type, or another confidence.
        """
        check(self)
        if self.xclp_parameters is not None or self.own_parameters is not None:
            from jaxfed import xclp

            check_value(
                "xclp_parameters",
                self.xclp_parameters,
                xclp.Parameters | None,
                owner="LabelSources",
            )
            check_value(
                "own_parameters", self.own_parameters, xclp.Propagation | None, owner="LabelSources"
            )

    def __call__(self, model: Model, execution: ClientExecution) -> dict[str, PseudoLabel]:
        """Return all sources for the features and predictions of one model."""
        map_clients, host = execution.map_labeling, execution.host
        embed = pseudo_label.embedding(model, map_clients, augment=self.augment)
        network = pseudo_label.network_labels(model, embed, confidence=self.confidence)
        sources = {
            "none": pseudo_label.labeled_only(),
            "unlabeled": pseudo_label.with_unlabeled(),
            "network": network,
            "teacher": pseudo_label.from_teacher(network),
        }
        propagated = self._propagated(embed, map_clients, host)
        for name, (source, parameters) in propagated.items():
            if self.class_weights:
                source = pseudo_label.class_weighted(
                    source, parameters.num_classes, within_clients=name == "per_client_lp"
                )
            sources[name] = source
        of_parameters = max((p.num_classes for _, p in propagated.values()), default=0)
        num_classes = self.num_classes or of_parameters
        parts = LabelParts(model, embed, map_clients, num_classes, host)
        for name in PSEUDO_LABELS.from_outside():
            try:
                source = PSEUDO_LABELS[name](parts, **(self.others or {}).get(name, {}))
            except UnknownClasses as error:
                sources[name] = _Refused(error)
                continue
            sources[name] = pseudo_label.checked(source, name, num_classes)
        return sources

    def _propagated(
        self, embed: Embed, map_clients: MapClients, host: Execution
    ) -> dict[str, tuple[PseudoLabel, xclp.Parameters | xclp.Propagation]]:
        """Return the sources by propagation that have parameters, with these."""
        found: dict[str, tuple[PseudoLabel, xclp.Parameters | xclp.Propagation]] = {}
        if self.xclp_parameters is not None or self.own_parameters is not None:
            from jaxfed.training.pseudo_labels import graph_points, propagated_labels
        if self.xclp_parameters is not None:
            for name, points in (
                ("xclp", graph_points.all_examples(embed)),
                (
                    "xclp_prototypes",
                    graph_points.with_prototypes(embed, self.xclp_parameters.num_classes),
                ),
            ):
                found[name] = (
                    propagated_labels.XclpLabels(points, self.xclp_parameters, host),
                    self.xclp_parameters,
                )
        if self.own_parameters is not None:
            source = propagated_labels.per_client_lp_labels(embed, self.own_parameters, map_clients)
            found["per_client_lp"] = source, self.own_parameters
        return found
