"""Shadow models of one method and repeat, trained on first use and cached in files.

The attacker is the server, which knows the config: network, optimizer, learner, numbers of rounds and steps.
There are three kinds (`jaxfed.audit.attacks.SHADOWS`):

    own_labels   models trained like clients of local learning, on labels alone, for as many steps as a
                 client of the method; every method that trains has them
    taught       as many more on the same examples, which also follow the instructions of the attacked run;
                 only where that run taught its clients by public targets
    played       results of the method itself on other examples: its own labelings where it can be repeated
                 for every shadow (`View.shadows`), and students of teacher ensembles for PATE

Shadows of the first two kinds lack the other parts of a method (averaging in every round, unlabeled examples,
prototypes). They measure how hard an example is, less well for methods that differ much from local learning.
Methods with the same shadows share them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.algorithms.pate import noisy_vote
from jaxfed.audit.evidence import AuditTargets, Sighting
from jaxfed.audit.files import AuditFiles
from jaxfed.audit.shadows import (
    Schooling,
    Shadows,
    on_own_labels,
    shadow_answers,
    shadow_memberships,
    student_answers,
)
from jaxfed.audit.surface import STUDENT
from jaxfed.audit.views import Instruction, View
from jaxfed.config import methods
from jaxfed.config.assembly import Ingredients
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.settings import Execution
from jaxfed.federation.method import plain
from jaxfed.learners import LEARNERS, Learner
from jaxfed.learners.client_fit import speaking
from jaxfed.random_streams import Stream


class ShadowPlan(NamedTuple):
    """Training plan of a method's shadow models.

    Fields:
        identity: cache key, equal for methods with equal shadows.
        rounds: number of rounds until the shadows change.
        train: federation, targets, is_in; observed, key -> round -> `Shadows`.
        what: description of the models, for display.
    """

    identity: str
    rounds: int
    train: Callable[..., dict[int, Shadows]]
    what: str = "shadow models"


@dataclass
class AuditShadows:
    """Shadow models available to an attacker of one method in one repeat.

    Attributes:
        config: of the experiment.
        files: of its audit.
        progress: displays the long steps.
        rounds: rounds whose messages are attacked.
        name: of the method.
        repeat: its number.
        federation: the clients.
        targets: the examples whose membership is inferred.
    """

    config: ConfigDict
    files: AuditFiles
    progress: RunProgress
    rounds: Sequence[int]
    name: str
    repeat: int
    federation: Federation
    targets: AuditTargets
    _made: dict[str, dict[int, Shadows]] = field(default_factory=dict)

    def of(self, seen: Sighting, number: int) -> dict[str, Shadows]:
        """Return the shadows for a message of a round by their kind (`jaxfed.audit.attacks.SHADOWS`)."""
        if not self.config.audit.shadows:
            return {}
        # Counts come from models of one client each, even where only their sum is observed.
        of_all = seen.kind != "counts" and (seen.client < 0).any()
        size = self._size_of_all() if of_all else self._size_of_one()
        known = {
            how: self._trained(plan, size).get(min(number, plan.rounds))
            for how, plan in self._plans.items()
        }
        if self._students is not None and seen.message == STUDENT:
            trained = self._trained(self._students, self._size_of_all(), "-students")
            known["played"] = trained.get(min(number, self._students.rounds))
        else:
            name = self._played(seen.message, number)
            if name not in self._made:
                self._made[name] = self.files.shadows(name) or {}
            known["played"] = self._made[name].get(number)
        return {how: shadows for how, shadows in known.items() if shadows is not None}

    @cached_property
    def _plans(self) -> dict[str, ShadowPlan]:
        of = self.config, self.name, self.federation, self.repeat
        plan, told = shadow_plan(*of), self.files.instructions(self.name, self.repeat)
        plans = {"own_labels": plan, "taught": taught_plan(*of, told) if told else None}
        return {how: plan for how, plan in plans.items() if plan is not None}

    @cached_property
    def _students(self) -> ShadowPlan | None:
        return student_plan(self.config, self.name, self.federation, self.repeat)

    def play(self, views: Sequence[View], number: int) -> None:
        """Run the method itself for every shadow, for the views that support it, and save the results."""
        is_in = self._memberships(self._size_of_all())
        x, y = (values[self.targets.examples] for values in (self.federation.x, self.federation.y))
        for view in views:
            if view.shadows is not None:
                said = Shadows(is_in, np.asarray(view.shadows(x, y, is_in), np.float32))
                self.files.save_shadows(self._played(view.message, number), {number: said})

    def _played(self, message: str, number: int) -> str:
        return f"{self.name}-{self.repeat}-{number}-{message}"

    def _size_of_one(self) -> int:
        sizes = np.bincount(self.targets.client[self.targets.is_member])
        return round(float(np.mean(sizes[sizes > 0])))

    def _size_of_all(self) -> int:
        return int(self.targets.is_member.sum())

    def _trained(self, plan: ShadowPlan, size: int, suffix: str = "") -> dict[int, Shadows]:
        """Return shadow predictions from their file; train the shadows and save the file if it is missing."""
        name = f"{self.repeat}-{plan.identity}-{size}{suffix}"
        if name not in self._made:
            there = self.files.shadows(name)
            if there is None:
                what = f"{self.config.audit.shadows} {plan.what} of {size} examples"
                self.progress.working_on(f"repeat {self.repeat + 1} {what}")
                logging.info("audit: %s: %s", what, name)
                seed = self.config.seed + self.repeat
                there = plan.train(
                    self.federation,
                    self.targets,
                    self._memberships(size),
                    observed=sorted({min(one, plan.rounds) for one in self.rounds}),
                    key=jax.random.fold_in(jax.random.key(seed), Stream.SHADOW_MODELS),
                )
                self.files.save_shadows(name, there)
            self._made[name] = there
        return self._made[name]

    def _memberships(self, size: int) -> np.ndarray:
        seed, number = self.config.seed + self.repeat, self.config.audit.shadows
        return shadow_memberships(len(self.targets.example), size, number, seed)


def shadow_plan(
    config: ConfigDict, name: str, federation: Federation, repeat: int
) -> ShadowPlan | None:
    """Return the plan of shadows that learn like single clients; None for a method that trains nothing."""
    if not methods.needs(config, name).trains:
        return None
    seen, own = methods.with_own_training(config, name), methods.all_keywords(config, name)
    rounds = min(config.rounds, own.get("teacher_rounds", config.rounds))
    steps = own.get("steps", own.get("revisit_steps")) or _local_steps(seen, federation)
    told = on_own_labels(rounds, steps)
    return taught_plan(config, name, federation, repeat, told)._replace(what="shadow models")


def taught_plan(
    config: ConfigDict,
    name: str,
    federation: Federation,
    repeat: int,
    instructions: Sequence[Sequence[Instruction]],
) -> ShadowPlan:
    """Return the plan of shadows that receive the same instructions as the method's clients."""
    seen = methods.with_own_training(config, name)
    described = [list(map(_described, told)) for told in instructions]
    learner = _learner_of(seen, name, "learner", federation, repeat)
    return ShadowPlan(
        _identity(seen, name, described),
        len(instructions),
        partial(shadow_answers, learner, instructions=instructions),
        f"shadow models, taught what {name} taught its clients,",
    )


def student_plan(
    config: ConfigDict, name: str, federation: Federation, repeat: int
) -> ShadowPlan | None:
    """Return the plan of shadow students; None for a method without a student."""
    if plain(methods.factory_of(config, name)).__name__ != "pate":
        return None
    seen, own = methods.with_own_training(config, name), methods.all_keywords(config, name)
    gamma, sizes = float(own["gamma"]), tuple(map(len, federation.partition.labeled))

    def vote(votes: np.ndarray, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        voters, classes = speaking(np.arange(len(votes)), votes), federation.num_classes
        return noisy_vote(votes, voters, key, Communication(), num_classes=classes, gamma=gamma)

    schooling = Schooling(
        sizes=sizes,
        voters=int(config.cohort_size) or len(sizes),
        rounds=int(own["teacher_rounds"]),
        steps=int(own["steps"]),
        student_rounds=int(config.rounds - own["teacher_rounds"] + 1),
        student_steps=int(own["student_steps"]),
        vote=vote,
    )
    teacher, student = (
        _learner_of(seen, name, ingredient, federation, repeat)
        for ingredient in ("learner", "server_learner")
    )
    return ShadowPlan(
        _identity(seen, name, [gamma, *schooling[:-1]]),
        int(config.rounds),
        partial(student_answers, teacher, student, schooling=schooling),
        f"shadow students with {schooling.voters} teachers each,",
    )


def _learner_of(
    seen: ConfigDict, name: str, ingredient: str, federation: Federation, repeat: int
) -> Callable[..., Learner]:
    """Return a function: keywords of a network -> learner; without keywords, the method's ingredient."""
    made = Ingredients(seen, federation, repeat, Execution(seen.execution.workers))
    has_learners = methods.needs(seen, name).has_learners

    def learner(**network: Any) -> Learner:
        if not has_learners:
            return LEARNERS["network"](training=made.training(), **network)
        return made.network()(**network) if network else getattr(made, ingredient)()

    return learner


def _identity(seen: ConfigDict, name: str, instructions: list[Any]) -> str:
    """Return a digest of everything that determines the shadows' training within one repeat."""
    has_learners = methods.needs(seen, name).has_learners
    described = {
        "training": seen.training.to_dict(),
        "model": seen.model.to_dict(),
        "learner": seen.learner.to_dict() if has_learners else {"name": "network", "names": ()},
        "instructions": instructions,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]


def _described(one: Instruction) -> list[Any]:
    """Return the instruction's fields as JSON values, with arrays as digests."""
    return [
        hashlib.sha256(value.tobytes()).hexdigest() if isinstance(value, np.ndarray) else value
        for value in one
    ]


def _local_steps(seen: ConfigDict, federation: Federation) -> int:
    """Return the local steps in one round of the client with the most labels."""
    wanted = seen.training
    if wanted.local_steps:
        return int(wanted.local_steps)
    size = wanted.batch_size or federation.max_labels
    return int(wanted.epochs * math.ceil(federation.max_labels / size))
