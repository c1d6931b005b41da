"""The methods of an experiment: which algorithm each one is, and what of its settings is its own.

    config.algorithm, config.baselines = "fedavg", ("fedprox", "fedadam")
    config.training.learning_rate = 0.1                        # of all methods that train a model
    config.fedprox = ConfigDict({"mu": 0.1, "training": {"learning_rate": 0.03}})
    config.fedadam = ConfigDict({"algorithm": "fedavg", "training": {"server_optimizer": "adam"}})

A method's name is that of an algorithm, or of a section with the key `algorithm`: a variant, that algorithm
once more, with the settings of its section in place of those in the algorithm's section. What a section
has under `training` is in place of `config.training` for this method alone. Data, clients, cohorts, rounds
and the network are the experiment's, so that what methods differ in is what their sections say.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import learner_section
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm

GIVEN = frozenset({"training", "execution", *learner_section.INGREDIENTS})  # by `make_algorithm`
_NOT_KEYWORDS = ("algorithm", "training")  # of a section; all else the algorithm's factory takes


def chosen(config: ConfigDict) -> tuple[str, ...]:
    """The methods that the experiment runs, in their order."""
    return (config.algorithm, *config.baselines)


def variants(config: ConfigDict) -> list[str]:
    """The sections that give an algorithm a second name."""
    sections = ((name, section) for name, section in config.items() if name not in ALGORITHMS)
    return [
        n for n, section in sections if isinstance(section, ConfigDict) and "algorithm" in section
    ]


def algorithm_of(config: ConfigDict, name: str) -> str:
    """The algorithm that a method is."""
    return str(_section(config, name).get("algorithm", name))


def factory_of(config: ConfigDict, name: str) -> Callable[..., FederatedAlgorithm]:
    """The factory in `ALGORITHMS` that makes the method."""
    return ALGORITHMS[algorithm_of(config, name)]


def trains(config: ConfigDict, name: str) -> bool:
    """Whether the method trains a model, or clients' own ones."""
    taken = inspect.signature(factory_of(config, name)).parameters
    return "training" in taken or learner_section.asks_for_learners(taken)


def check_trains(config: ConfigDict, name: str, wanted: str) -> None:
    """A method trains a model, which what is wanted is of.

    Raises:
        UsageError: it labels in one shot.
    """
    if not trains(config, name):
        key = "algorithm" if name == config.algorithm else "baselines"
        raise UsageError(
            f"config.{key}={config[key]!r}: {name!r} labels in one shot; allowed are methods that train a "
            f"model, which {wanted} are of"
        )


def has_learners(config: ConfigDict, name: str) -> bool:
    """Whether clients of the method have models of their own, which `config.learner` names."""
    return learner_section.asks_for_learners(inspect.signature(factory_of(config, name)).parameters)


def heeds_scales(config: ConfigDict, name: str) -> bool:
    """Whether units of features count: in cosines and distances of one-shot methods, and for some learners.

    Not in networks, which standardize every feature (`Federation.normalization`), nor in graphs of what
    these make of examples.
    """
    if has_learners(config, name):
        return learner_section.heeds_scales(config)
    return not trains(config, name)


def is_public(config: ConfigDict, name: str) -> bool:
    """Whether the method teaches labels of public examples."""
    return "public" in inspect.signature(factory_of(config, name)).parameters


def keywords(config: ConfigDict, name: str) -> dict[str, Any]:
    """What the method's factory is given: of a variant its algorithm's keywords and its own over them."""
    sections = (_section(config, algorithm_of(config, name)), _section(config, name))
    given = {key: value for section in sections for key, value in section.items()}
    return {key: value for key, value in given.items() if key not in _NOT_KEYWORDS}


def all_keywords(config: ConfigDict, name: str) -> dict[str, Any]:
    """The same, and the defaults of what no section says."""
    known = inspect.signature(factory_of(config, name)).parameters
    defaults = {word: parameter.default for word, parameter in known.items()}
    return {**defaults, **keywords(config, name)}


def with_own_training(config: ConfigDict, name: str) -> ConfigDict:
    """The config as this method sees it: its own training is in the section `training`, and only there."""
    own = _own_training(config, name)
    if not own:
        return config
    seen = config.copy_and_resolve_references()
    for key, (_, value) in own.items():
        seen.training[key] = value
    with seen.unlocked():
        for section in {algorithm_of(config, name), name}.intersection(seen):
            if "training" in seen[section]:
                del seen[section]["training"]
    return seen


def uses_training(config: ConfigDict, name: str) -> bool:
    """Whether the network and `config.training` say anything about the method."""
    if has_learners(config, name):
        return learner_section.has_networks(config)
    return trains(config, name)


def differently_trained(config: ConfigDict) -> Iterator[tuple[str, ConfigDict]]:
    """The methods that train a model, one of each kind of training, with the config as they see it."""
    there: list[dict[str, Any]] = []
    for name in chosen(config):
        if uses_training(config, name):
            seen = with_own_training(config, name)
            training = seen.training.to_dict()
            if training not in there:
                there.append(training)
                yield name, seen


def training_key(config: ConfigDict, name: str, key: str) -> str:
    """Where the method's value of `training.KEY` stands."""
    section, _ = _own_training(config, name).get(key, ("", None))
    return f"{section}.training.{key}" if section else f"training.{key}"


def unsaid(config: ConfigDict, key: str) -> Any:
    """What a key holds that a method may have and its section does not say: what it has without saying.

    Raises:
        KeyError: no method has it.
    """
    name, *rest = key.split(".")
    if name == "learner":
        return learner_section.unsaid(key)
    if rest == ["algorithm"] and name not in config:
        return ""  # which is about to become a variant's
    if name not in ALGORITHMS and name not in variants(config):
        raise KeyError(key)
    if rest[:1] == ["training"]:
        (leaf,) = rest[1:]
        return with_own_training(config, name).training[leaf]
    (leaf,) = rest
    if leaf in GIVEN:
        raise KeyError(key)
    return all_keywords(config, name)[leaf]


def own_keys(config: ConfigDict) -> Iterator[str]:
    """Every key that a method can have, or a learner: keywords of factories, and of methods' own training."""
    yield from learner_section.own_keys()
    for name in (*ALGORITHMS, *variants(config)):
        if trains(config, name):
            yield from (f"{name}.training.{key}" for key in config.training)
        for word, parameter in inspect.signature(factory_of(config, name)).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY and word not in GIVEN:
                yield f"{name}.{word}"


@contextmanager
def naming_own_training(config: ConfigDict, name: str) -> Iterator[None]:
    """Say of an error about `config.training.KEY` where the method's value stands."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            re.sub(
                r"config\.training\.(\w+)",
                lambda found: f"config.{training_key(config, name, found[1])}",
                str(error),
            )
        ) from error


def _own_training(config: ConfigDict, name: str) -> dict[str, tuple[str, Any]]:
    """Key -> (section, value) under `training` in the method's section, or else in its algorithm's."""
    return {
        key: (section, value)
        for section in (algorithm_of(config, name), name)
        for key, value in _section(config, section).get("training", {}).items()
    }


def _section(config: ConfigDict, name: str) -> ConfigDict:
    section = config.get(name, ConfigDict())
    return section if isinstance(section, ConfigDict) else ConfigDict()
