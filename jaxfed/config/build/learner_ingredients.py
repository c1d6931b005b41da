"""Build what a method with per-client models takes, from section `learner`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from jaxfed.config import learner_section
from jaxfed.config.learner_section import names_of
from jaxfed.config.sections import MIXED
from jaxfed.errors import section
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.settings import Execution
from jaxfed.learners import LEARNERS, Learner, mixed
from jaxfed.learners.learner import unnamed
from jaxfed.training.specification import Training

TrainingOf = Callable[[Federation], Training]


def ingredients(
    config: ConfigDict,
    takes: Collection[str],
    federation: Federation,
    training_of: TrainingOf,
    execution: Execution,
) -> dict[str, Any]:
    """Build the ingredients that a method takes.

    `learner` is all clients' models; `server_learner` one of the same kind for `Federation.pooled` clients,
    the first of a mixture; `network` a function: keywords -> networks of all clients, with these in place of
    the section's own.
    """
    making = partial(_learner, config, federation.num_classes, execution)
    pooled = federation.pooled()

    def networks(**own: Any) -> Learner:
        return making("network", partial(training_of, federation), own)

    make: dict[str, Callable[[], Any]] = {
        "learner": lambda: _all_clients(config, making, partial(training_of, federation)),
        "server_learner": lambda: making(names_of(config)[0], partial(training_of, pooled), {}),
        "network": lambda: networks,
        "public": lambda: federation.public_examples,
        "public_labels": lambda: federation.public_labels,
        "num_classes": lambda: federation.num_classes,
    }
    return {name: make[name]() for name in takes}


def _all_clients(
    config: ConfigDict, making: Callable[..., Learner], training: Callable[[], Training]
) -> Learner:
    made = [making(name, training, {}) for name in names_of(config)]
    return mixed(made) if config.learner.name == MIXED else made[0]


def _learner(
    config: ConfigDict,
    num_classes: int,
    execution: Execution,
    name: str,
    training: Callable[[], Training],
    own: Mapping[str, Any],
) -> Learner:
    given: dict[str, Any] = {**config.learner.get(name, {}), **own}
    ingredients: dict[str, Callable[[], Any]] = {
        "training": training,
        "num_classes": lambda: num_classes,
        "execution": lambda: execution,
    }
    asked = {key: make() for key, make in ingredients.items() if learner_section.takes(name, key)}
    with section(f"config.learner.{name}", given):
        made = LEARNERS[name](**asked, **given)
    return made._replace(name_of=lambda client: name) if made.name_of is unnamed else made
