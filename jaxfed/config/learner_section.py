"""The section `learner`: the learner of every client, in methods with per-client models.

    config.learner.name = "decision_tree"                   # in jaxfed.learners.LEARNERS; "mixed" is
    config.learner.names = ("decision_tree", "network")     # these, cycled over the clients
    config.learner.decision_tree.max_depth = 4              # a learner's own keywords

`jaxfed.config.build.learner_ingredients` builds what a method with per-client models takes.
"""

from __future__ import annotations

from collections.abc import Collection

from ml_collections import ConfigDict

from jaxfed.config.sections import MIXED
from jaxfed.errors import UsageError, section
from jaxfed.learners import LEARNERS, SCALE_FREE, TAKEN
from jaxfed.settings import REQUIRED, Setting, settings_of, takes_any


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
    return name in LEARNERS and keyword in settings_of(LEARNERS[name])


def settings(name: str) -> dict[str, Setting]:
    """Return keyword -> setting of a learner."""
    return {key: one for key, one in settings_of(LEARNERS[name]).items() if key not in TAKEN}


def passes_on(name: str, keyword: str) -> bool:
    """True for a keyword that a learner passes through unchecked, to the class named by `estimator`."""
    is_open = name in LEARNERS and takes_any(LEARNERS[name])
    return is_open and keyword not in settings_of(LEARNERS[name]) and keyword.isidentifier()


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
        for key, one in settings(name).items():
            if one.default is REQUIRED and key not in given:
                wrong = f"missing; learner.name={name!r} needs it"
                raise UsageError(wrong, key=f"config.learner.{name}.{key}")
        if name not in LEARNERS.from_outside() and "training" not in settings_of(LEARNERS[name]):
            with section(f"config.learner.{name}", given):
                LEARNERS[name](num_classes=2, **given)  # its class has the last word on keywords
