"""The section `learner`: the learner of every client, in methods with per-client models.

    config.learner.name = "decision_tree"                   # in jaxfed.learners.LEARNERS, or "mixed"
    config.learner.names = ("decision_tree", "network")     # cycled over the clients if name is "mixed"
    config.learner.decision_tree.max_depth = 4              # a learner's own keywords

`ingredients` of `jaxfed.config.build.assembly` builds what a method with per-client models takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxfed.config.sections import MIXED
from jaxfed.errors import section
from jaxfed.learners import INGREDIENTS, LEARNERS, SCALE_FREE
from jaxfed.settings import Setting, check_complete, settings_of, takes_any


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


def takes(name: str, ingredient: str) -> bool:
    """True if a learner's factory has this keyword."""
    return name in LEARNERS and ingredient in settings_of(LEARNERS[name])


def settings_at(name: str) -> Mapping[str, Setting]:
    """Return key -> setting of a learner's section; empty for an unknown learner."""
    known = settings_of(LEARNERS[name]) if name in LEARNERS else {}
    return {key: one for key, one in known.items() if key not in INGREDIENTS}


def is_open(name: str, key: str) -> bool:
    """True for a key that a learner passes on unchecked: a keyword of the class named by `estimator`."""
    return (
        name in LEARNERS
        and takes_any(LEARNERS[name])
        and key not in (*settings_at(name), *INGREDIENTS)
    )


def check_keywords(name: str, given: Mapping[str, Any]) -> None:
    """Check that a learner has the keywords that it needs, and that its class takes them.

    Raises:
        UsageError: a keyword is missing, or the class refuses one.
    """
    owner = f"config.learner.{name}"
    check_complete(settings_at(name), given, owner, f"learner.name={name!r} needs it")
    if name not in LEARNERS.from_outside() and not takes(name, "training"):
        with section(owner, given):
            LEARNERS[name](num_classes=2, **given)
