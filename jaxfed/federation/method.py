"""Declaration of a method at its factory: the one place that reports, tables, pages and checks read.

    @ALGORITHMS.register("fedprox")         # for a method outside jaxfed; jaxfed's own are listed
    @method(title="FedProx", cites="Li et al., MLSys 2020", leaves="its model's change", weighting="uniform")
    def fedprox(*, training: Training, mu: NotNegative = 0.01, pseudo_label: str = "none"): ...

    fedprox(training=training, mu=-1)           # UsageError: fedprox.mu=-1: use numbers from 0 on
    declared(fedprox).weighting                 # "uniform"

Ingredients are keywords that a run makes for the method, such as `training`. All other keywords are settings:
keys of the method's section in a config. `jaxfed.config.assembly.make_algorithm` calls the factory with both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar

from jaxfed.data.given_examples import examples_of
from jaxfed.errors import UsageError
from jaxfed.settings import REQUIRED, OneOf, Setting, check, check_each, settings_of, unwrapped

R = TypeVar("R")
LabelHolder = Literal["clients", "server"]

EVERYWHERE: tuple[LabelHolder, ...] = ("clients", "server")
_EXAMPLES = "ml_collections_configs/labels_at_server.py has methods for both"
INGREDIENTS = {
    "training": "a network",
    "participation": "",
    "task": "",
    "execution": "",
    "num_classes": "",
    "learner": "a learner at each client",
    "server_learner": "a learner",
    "network": "networks",
    "public": "public examples",
    "public_labels": "with labels",
}
"""Ingredient -> what a method that takes it needs, for `docs/methods.md`; "" if nothing."""


def labels_elsewhere(holder: LabelHolder, name: str = "this method", **parts: Any) -> UsageError:
    """Return the error of a method that needs labels at `holder`, where nobody has any."""
    allowed = f"use federation.labels_at={holder!r}; {_EXAMPLES}"
    return UsageError(f"{name} needs labels at the {holder}", allowed=allowed, **parts)


@dataclass(frozen=True, kw_only=True)
class Method:
    """Title, paper, ingredients, needs and messages of a method.

    Attributes:
        title: its name in reports and tables; "": its name in configs.
        cites: its paper, as "authors, venue year"; "" for none.
        leaves: what leaves a client, as in "its model's change"; "": not said.
        on_network: True if it also runs between processes (`jaxfed.federation.algorithm.OnNetwork`).
        one_shot: True if one round labels all points of its cohort and trains no model.
        pooled: True if all clients' data are in one place: a bound, not a federated method.
        takes: its ingredients, out of `INGREDIENTS`; its other keywords are settings.
        fields: factory's parameter -> dataclass, whose fields are settings in place of the parameter.
        without: fields of these dataclasses that are no settings, because the method sets them.
        together: function of all settings, as attributes of one object; raises a UsageError if two of them
            contradict each other.
        pseudo_label: source of labels after stage 1, a name or a function of all settings; None: the value of
            its keyword `pseudo_label`, or any source if it has no such keyword.
        labels_at: holders of labels that it can learn from.
        two_views: True if it compares two views of an example and needs a strong augmentation.
        private: True if it guarantees an epsilon for clients' rows: it may use no exact statistics.
        unread: fields of `LocalTraining` and `ServerTraining` that no round of it reads.
        ignores: further keys of a config's `training` that no round of it reads, whatever their value.
        weighting: clients' weights in its paper's mean, a key of `WEIGHTINGS` or a function of all settings;
            None: by examples, or those of a method that it calls.

    Raises:
        UsageError: a value that is not allowed.
    """

    title: str = ""
    cites: str = ""
    leaves: str = ""
    on_network: bool = False
    one_shot: bool = False
    pooled: bool = False
    takes: tuple[Annotated[str, OneOf(INGREDIENTS)], ...] = ("training",)
    fields: Mapping[str, type] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    together: Callable[[SimpleNamespace], None] | None = None
    pseudo_label: str | Callable[[SimpleNamespace], str] | None = None
    labels_at: tuple[LabelHolder, ...] = ("clients",)
    two_views: bool = False
    private: bool = False
    unread: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    weighting: str | Callable[[SimpleNamespace], str | None] | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def has_learners(self) -> bool:
        """True if learners make its models: one at each client, or one for the rows of all clients."""
        return not {"learner", "server_learner", "network"}.isdisjoint(self.takes)

    @property
    def trains(self) -> bool:
        """True if it trains a model, shared or per client."""
        return "training" in self.takes or self.has_learners

    def of(self, settings: Mapping[str, Any]) -> Method:
        """Return the declaration with `pseudo_label` and `weighting` computed from all settings."""
        values = SimpleNamespace(**settings)
        source, weighting = self.pseudo_label, self.weighting
        source = source(values) if callable(source) else source or settings.get("pseudo_label")
        weighting = weighting(values) if callable(weighting) else weighting
        return replace(self, pseudo_label=source, weighting=weighting)


def method(**declaration: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorate a factory: declare its method, and check its keywords in each call.

    Arguments are the attributes of `jaxfed.federation.method.Method`.

    Raises:
        UsageError: the factory has other ingredients than it declares.
    """
    spec = Method(**declaration)
    if "training" in spec.takes and not spec.two_views:
        spec = replace(spec, unread=(*spec.unread, "strong_augment"))
    in_objects = {key for kind in spec.fields.values() for key in settings_of(kind)} - {
        *spec.without
    }

    def declare(factory: Callable[..., R]) -> Callable[..., R]:
        name = factory.__name__
        parts = (settings_of(part) for part in (factory, *spec.fields.values()))
        names = {key for part in parts for key in part}
        if (taken := INGREDIENTS.keys() & names) != {*spec.takes}:
            takes = tuple(key for key in INGREDIENTS if key in taken)
            raise UsageError(
                f"method {name!r} takes {', '.join(takes) or 'no training'}, and does not declare it; "
                f"write @method(takes={takes})"
            )

        @functools.wraps(factory)
        def made(**keywords: Any) -> R:
            values, objects = checked(made, keywords)
            if "training" in keywords:
                objects["training"] = _read(keywords["training"], name, spec.of(values))
            used = {"training", *in_objects}
            rest = {key: value for key, value in keywords.items() if key not in used}
            if "public" in rest:
                rest["public"] = examples_of(rest["public"], f"{name}: public")
            algorithm: Any = factory(**rest, **objects)
            if hasattr(algorithm, "round"):  # anything else is refused where it is used
                alone = {} if spec.on_network else {"on_network": None}
                round_ = with_attributes(algorithm.round, one_shot=spec.one_shot, **alone)
                algorithm = algorithm._replace(round=round_)
            result: R = algorithm
            return result

        made.declaration = spec  # type: ignore[attr-defined]
        return made

    return declare


def _read(training: Any, name: str, spec: Method) -> Any:
    if not hasattr(training, "read_by"):
        kind = type(training).__name__
        raise UsageError(f"{name}: training is a {kind}; use jaxfed.Training(model)")
    if spec.two_views:
        training.local.require_two_views(name)
    if spec.labels_at == ("server",):
        training.server.require_labels()
    return training.read_by(spec.unread, spec.weighting)


def declared(factory: Callable[..., Any]) -> Method:
    """Return the declaration of a factory, or of the one inside a partial."""
    function = plain(factory)
    declaration: Method | None = getattr(function, "declaration", None)
    if declaration is None:
        raise UsageError(
            f"method {function.__name__!r} has no declaration; write @method(...) of "
            "jaxfed.federation.method between @ALGORITHMS.register and its def"
        )
    return declaration


@functools.cache
def method_settings(factory: Callable[..., Any]) -> dict[str, Setting]:
    """Return key -> setting of a method's section: keywords of its factory, and fields of its dataclasses."""
    spec = declared(factory)
    settings = {name: one for name, one in settings_of(factory).items() if name not in spec.fields}
    defaults = factory.keywords if isinstance(factory, functools.partial) else {}
    for kind in spec.fields.values():
        for name, one in settings_of(kind).items():
            settings[name] = one._replace(default=defaults.get(name, one.default))
    return {name: one for name, one in settings.items() if name not in (*spec.takes, *spec.without)}


def completed(factory: Callable[..., Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords, and the defaults of settings that are not among them."""
    known = method_settings(factory)
    defaults = {name: one.default for name, one in known.items() if one.default is not REQUIRED}
    return {**defaults, **keywords}


def checked(
    factory: Callable[..., Any], keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check a method's settings one by one and together, without a call of its factory.

    Returns all keywords, with defaults; and factory's parameter -> its dataclass, made of them.
    """
    spec, values = declared(factory), completed(factory, keywords)
    check_each(method_settings(factory), values, plain(factory).__name__)
    objects: dict[str, Any] = {}
    for parameter, kind in spec.fields.items():
        names = settings_of(kind).keys() - {*spec.without}
        objects[parameter] = kind(**{key: values[key] for key in names & values.keys()})
    if spec.together is not None:
        spec.together(SimpleNamespace(**values))
    return values, objects


def with_attributes(function: Callable[..., R], **attributes: Any) -> Callable[..., R]:
    """Return a method's `round` or `evaluate` with attributes, each for a module that reads it."""
    extended = functools.partial(function)
    vars(extended).update(attributes)
    return extended


def plain(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return the declared function inside a partial or wrapped one, or else the innermost function."""
    function: Callable[..., Any] = unwrapped(factory, until="declaration")
    return function
