"""The section `learner`: the learner of every client, in methods with per-client models.

    config.learner.name = "decision_tree"                   # in jaxfed.learners.LEARNERS; "mixed" is
    config.learner.names = ("decision_tree", "network")     # these, cycled over the clients
    config.learner.decision_tree.max_depth = 4              # a learner's own keywords

`jaxfed.config.build.learner_ingredients` builds what a method with per-client models takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from typing import Any

from ml_collections import ConfigDict

from jaxfed.config.keys import check_own, unknown_key
from jaxfed.config.sections import MIXED
from jaxfed.errors import UsageError, section
from jaxfed.learners import LEARNERS, SCALE_FREE
from jaxfed.rules import check_keywords

_GIVEN = ("training", "num_classes", "execution")  # `build.learner_ingredients` passes them


def names_of(config: ConfigDict) -> tuple[str, ...]:
    """Return the names of the clients' learners."""
    return tuple(config.learner.names) if config.learner.name == MIXED else (config.learner.name,)


def has_networks(config: ConfigDict) -> bool:
    """True if some client trains a network, so that sections `training` and `model` matter."""
    return any(takes(name, "training") for name in names_of(config))


def heeds_scales(config: ConfigDict) -> bool:
    """True if some client's learner depends on the units of features."""
    settings = config.learner.get("estimator", {})
    free = SCALE_FREE | ({"estimator"} if settings.get("is_scaled") else set())
    return not free.issuperset(names_of(config))


def takes(name: str, keyword: str) -> bool:
    """True if a learner's factory has this keyword."""
    return name in LEARNERS and keyword in inspect.signature(LEARNERS[name]).parameters


def keywords_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the keywords of a learner that its section may contain."""
    known = inspect.signature(LEARNERS[name]).parameters
    return {
        key: parameter
        for key, parameter in known.items()
        if key not in _GIVEN and parameter.kind is parameter.KEYWORD_ONLY
    }


def _hands_on(name: str) -> bool:
    """True if a learner accepts arbitrary keywords."""
    parameters = inspect.signature(LEARNERS[name]).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def own_keys() -> Iterator[str]:
    """Yield every key of the section except `name` and `names`."""
    for name in LEARNERS:
        yield from (f"learner.{name}.{key}" for key in keywords_of(name))


def unsaid(key: str) -> Any:
    """Return the default of a key `learner.NAME.KEY` that the section omits.

    None, for a value of any type, if the learner passes the keyword through unchecked: a keyword of the class
    named by `estimator`.

    Raises:
        KeyError: there is no such key.
    """
    _, name, leaf = key.split(".")
    if name in LEARNERS and leaf not in (*keywords_of(name), *_GIVEN) and _hands_on(name):
        return None
    default = keywords_of(name)[leaf].default if name in LEARNERS else inspect.Parameter.empty
    if default is inspect.Parameter.empty:
        if (name, leaf) == ("estimator", "estimator"):
            return ""
        raise KeyError(key)
    return default


def check_learner_key(key: str, value: Any) -> None:
    """Check that `learner.NAME.KEY` is a keyword of the learner, and its value.

    Raises:
        UsageError: an unknown key, a value of another type, or one out of range.
    """
    name, _, leaf = key.removeprefix("learner.").partition(".")
    is_known = name in LEARNERS and leaf and (leaf in keywords_of(name) or _hands_on(name))
    if not is_known or leaf in _GIVEN:
        raise unknown_key(key, {*own_keys(), "learner.name", "learner.names"})
    check_own(f"learner.{name}", {leaf: value}, LEARNERS[name])


def check_learner(config: ConfigDict) -> None:
    """Check that a mixture lists at most as many learners as clients.

    Raises:
        UsageError: names the key.
    """
    names, num_clients = config.learner.names, config.federation.num_clients
    if 0 < num_clients < len(names):
        wrong = f"at most {num_clients} with federation.num_clients={num_clients}"
        raise UsageError(wrong, key="config.learner.names", value=names)


def check_learners(config: ConfigDict, method: str, takes: Collection[str]) -> None:
    """Check the keywords of the clients' learners, and that a method of networks has networks.

    `takes` are the method's ingredients.

    Raises:
        UsageError: a missing keyword, a value that is not allowed, or a learner that the method cannot use.
    """
    names = names_of(config)
    if "network" in takes and names != ("network",):
        raise UsageError(
            f"{method!r} shares probabilities or scores; only networks can learn from them",
            key="config.learner.name",
            value=config.learner.name,
            allowed="use 'network'",
        )
    for name in names:
        given = config.learner.get(name, {})
        for key, parameter in keywords_of(name).items():
            if parameter.default is parameter.empty and key not in given:
                wrong = f"missing; learner.name={name!r} needs it"
                raise UsageError(wrong, key=f"config.learner.{name}.{key}")
        with section(f"config.learner.{name}", given):
            check_keywords(LEARNERS[name], given)
