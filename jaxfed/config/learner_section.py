"""The section `learner`: what every client trains, in methods whose clients have models of their own.

    config.learner.name = "decision_tree"                   # in jaxfed.learners.LEARNERS; "mixed" is
    config.learner.names = ("decision_tree", "network")     # these, cycled over the clients
    config.learner.decision_tree.max_depth = 4              # a learner's own keywords

A factory of a method asks for what it needs by the names of its keywords (`INGREDIENTS`), which
`jaxfed.config.learner_ingredients` makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from typing import Any

from ml_collections import ConfigDict

from jaxfed.config.keys import TYPES, check_value, unknown_key
from jaxfed.errors import UsageError
from jaxfed.learners import LEARNERS, SCALE_FREE
from jaxfed.rules import Rule

MIXED = "mixed"
INGREDIENTS = {
    "learner": "all clients' models",
    "server_learner": "one model of the same kind, of `Federation.pooled` clients; the first of a mixture",
    "network": "keywords -> networks of all clients, with these in place of the section's own",
    "public": "`Federation.public_examples`",
    "public_labels": "`Federation.public_labels`",
    "num_classes": "C",
}
_GIVEN = ("training", "num_classes", "execution")  # by `jaxfed.config.learner_ingredients`


def asks_for_learners(keywords: Collection[str]) -> bool:
    """Whether a factory with these keywords makes a method of clients with models of their own."""
    return not {"learner", "server_learner", "network"}.isdisjoint(keywords)


def names_of(config: ConfigDict) -> tuple[str, ...]:
    """The learners that clients have."""
    return tuple(config.learner.names) if config.learner.name == MIXED else (config.learner.name,)


def has_networks(config: ConfigDict) -> bool:
    """Whether the section `training`, and the network, say anything about what clients train."""
    return any(takes(name, "training") for name in names_of(config))


def heeds_scales(config: ConfigDict) -> bool:
    """Whether some client may learn another model where a feature has another unit."""
    settings = config.learner.get("estimator", {})
    free = SCALE_FREE | ({"estimator"} if settings.get("is_scaled") else set())
    return not free.issuperset(names_of(config))


def takes(name: str, keyword: str) -> bool:
    """Whether a learner's factory has this keyword."""
    return name in LEARNERS and keyword in inspect.signature(LEARNERS[name]).parameters


def keywords_of(name: str) -> dict[str, inspect.Parameter]:
    """The keywords of a learner that its section may have."""
    known = inspect.signature(LEARNERS[name]).parameters
    return {
        key: parameter
        for key, parameter in known.items()
        if key not in _GIVEN and parameter.kind is parameter.KEYWORD_ONLY
    }


def _hands_on(name: str) -> bool:
    """Whether a learner takes any keyword."""
    parameters = inspect.signature(LEARNERS[name]).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def own_keys() -> Iterator[str]:
    """Every key of the section but `name` and `names`."""
    for name in LEARNERS:
        yield from (f"learner.{name}.{key}" for key in keywords_of(name))


def unsaid(key: str) -> Any:
    """The default of a key `learner.NAME.KEY` that the section does not say.

    None, which stands for a value of any type, of one that the learner hands on unseen: a keyword of the
    class that `estimator` names.

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
    """A key `learner.NAME.KEY` is a keyword of that learner, of its default's type; it judges the rest.

    Raises:
        UsageError: another key, or a value of another type.
    """
    name, _, leaf = key.removeprefix("learner.").partition(".")
    is_known = name in LEARNERS and leaf and (leaf in keywords_of(name) or _hands_on(name))
    if not is_known or leaf in _GIVEN:
        raise unknown_key(key, {*own_keys(), "learner.name", "learner.names"})
    default = keywords_of(name)[leaf].default if leaf in keywords_of(name) else None
    if type(default) in TYPES:
        check_value(key, value, Rule(type(default), TYPES[type(default)]))


def check_is_whole(name: str, given: Collection[str]) -> None:
    """A learner has the keywords that it cannot do without.

    Raises:
        UsageError: one is missing.
    """
    for key, parameter in keywords_of(name).items():
        if parameter.default is parameter.empty and key not in given:
            raise UsageError(
                f"config.learner.{name}.{key}: missing; learner.name={name!r} needs it"
            )


def check_learner(config: ConfigDict) -> None:
    """A mixture has learners, no more than there are clients, and others have none.

    Raises:
        UsageError: names the key.
    """
    wanted, num_clients = config.learner, config.federation.num_clients
    if (wanted.name == MIXED) != bool(wanted.names):
        raise UsageError(
            f"config.learner.names={wanted.names!r}: allowed are learners with learner.name='mixed', and () "
            "with any other"
        )
    if num_clients and len(wanted.names) > num_clients:
        raise UsageError(
            f"config.learner.names={wanted.names!r}: at most {num_clients} with "
            f"federation.num_clients={num_clients}"
        )
