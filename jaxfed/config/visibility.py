"""What of a config a method sees: where that is equal, so are its results, whatever else differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import learner_section, methods
from jaxfed.config.assembly import for_nobody, make_training, nobody, settings_to_try
from jaxfed.training.label_sources import SECTION_OF
from jaxfed.training.pseudo_label import PseudoLabel
from jaxfed.xclp import who_learns as who_learns_of

_OF_NO_METHOD = ("algorithm", "baselines", "paper_table")
_OF_TRAINING = ("model", "training", "pseudo_label")
_WITHOUT_LABELS = {"none", "unlabeled"}  # pseudo-labelers that label nothing


def seen_by(config: ConfigDict, name: str) -> dict[str, Any]:
    """All of a checked config that can change what a method computes, nested.

    Seed, data, clients, public examples, cohorts, rounds and execution every method sees. Of methods'
    sections it sees its own keywords and, where it trains on pseudo-labels, those that these are found by.
    `training` is its own (`jaxfed.config.methods`), and of no account for a method that labels in one shot,
    unless the features are those of a model that is trained first. `learner` is for methods whose clients
    have models of their own, which see of it, and of `model` and `training`, what these clients' learners
    take. `selection` counts where there is something to choose from.
    """
    seen: dict[str, Any] = methods.with_own_training(config, name).to_dict()
    of_methods = {*ALGORITHMS, *methods.variants(config)}
    for key in {*_OF_NO_METHOD, *of_methods, "selection"}:
        seen.pop(key, None)
    seen["method"] = (methods.algorithm_of(config, name), methods.keywords(config, name))
    if methods.has_learners(config, name):
        return _seen_by_learners(config, seen)
    del seen["learner"]
    if methods.trains(config, name):
        taken = _pseudo_labels_taken(config, name)
        # Those that have settings have them in a section, mostly of their name, which may be a method's, too.
        sections = {SECTION_OF.get(source, source) for source in taken}
        seen |= {section: config[section].to_dict() for section in sections.intersection(config)}
        if taken <= _WITHOUT_LABELS:
            del seen["pseudo_label"]
        return seen
    if config.preprocessing.kind != "federated_features":
        for key in _OF_TRAINING:
            del seen[key]
    tried = settings_to_try(config, name)
    if config.selection.settings != "given" and len(tried) > 1:
        seen["selection"] = (config.selection.folds, config.selection.measure, tried)
    return seen


def who_learns(config: ConfigDict) -> list[str]:
    """Lines on what the server and the clients can learn where steps of XCLP are protocols.

    A run over plaintext promises nothing, and has none.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for name in methods.chosen(config):
        settings = _xclp_settings(config, name)
        if settings and not settings["hamming"] == settings["row_sums"] == "plaintext":
            found.setdefault(who_learns_of.lines(settings), []).append(name)
    return [f"{', '.join(names)}: {line}" for lines, names in found.items() for line in lines]


def _xclp_settings(config: ConfigDict, name: str) -> dict[str, Any]:
    """The settings of XCLP that a method labels by; none where it does not."""
    if not methods.trains(config, name):
        own = methods.all_keywords(config, name)
        return own if "hamming" in own else {}
    by_xclp = {"xclp", "xclp_prototypes"}
    if methods.has_learners(config, name) or not by_xclp & _pseudo_labels_taken(config, name):
        return {}
    settings: dict[str, Any] = config.xclp.to_dict()
    return settings


def _seen_by_learners(config: ConfigDict, seen: dict[str, Any]) -> dict[str, Any]:
    """Without the settings of learners that clients have not, and of networks where nobody has one."""
    names = {*learner_section.names_of(config), "name", "names"}
    seen["learner"] = {key: value for key, value in seen["learner"].items() if key in names}
    del seen["pseudo_label"]
    if not learner_section.has_networks(config):
        del seen["model"], seen["training"]
    return seen


def _pseudo_labels_taken(config: ConfigDict, name: str) -> set[str]:
    """The pseudo-labelers that a method takes from its ingredients when it is made.

    All of them if it takes none then: it may do so later.
    """
    seen = for_nobody(methods.with_own_training(config, name))
    training = make_training(seen, nobody(seen), repeat=0)
    sources = _Watched(training.pseudo_labels)
    keywords = methods.keywords(config, name)
    watched = replace(training, pseudo_labels=sources, pseudo_labels_of=lambda model: sources)
    methods.factory_of(config, name)(training=watched, **keywords)
    return sources.taken or set(training.pseudo_labels)


class _Watched(Mapping[str, PseudoLabel]):
    """Remembers what is taken from it."""

    def __init__(self, sources: Mapping[str, PseudoLabel]) -> None:
        self._sources = sources
        self.taken: set[str] = set()

    def __getitem__(self, name: str) -> PseudoLabel:
        self.taken.add(name)
        return self._sources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
