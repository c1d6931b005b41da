"""Training plans of a membership-inference attacker's shadow models, from a method's config.

The attacker is the server, which knows the config: network, optimizer, learner, numbers of rounds and steps.

    own labels    shadows train like clients of local learning (`jaxfed.learners`): on labels alone, for as
                  many steps as a client of the method
    taught        if a method sends public targets to its clients, shadows also train with the targets of the
                  attacked run (`taught_plan`)
    students      PATE's student is attacked by students of the attacker's own ensembles (`student_plan`)

Shadows lack the other parts of a method (averaging in every round, unlabeled examples, prototypes). They
measure how hard an example is, less well for methods that differ much from local learning.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.algorithms.pate import STUDENT, noisy_vote, pate
from jaxfed.audit import Schooling, on_own_labels
from jaxfed.config import methods
from jaxfed.config.build.assembly import ingredients, make_training
from jaxfed.federation.attack_surface import Instruction
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.settings import Execution
from jaxfed.learners import LEARNERS, Learner
from jaxfed.learners.client_fit import speaking


@dataclass(frozen=True)
class ShadowPlan:
    """Training plan of a method's shadow models.

    Attributes:
        instructions: of the method's rounds in which its clients learn from their own labels.
        identity: cache key, equal for methods with equal shadows.
        learner: keywords of a network -> learner.
    """

    instructions: Sequence[Sequence[Instruction]]
    identity: str
    learner: Callable[..., Learner]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.instructions)


def shadow_plan(
    config: ConfigDict, name: str, federation: Federation, repeat: int
) -> ShadowPlan | None:
    """Return the plan of shadows that learn like single clients; None for a method that trains nothing."""
    if not methods.needs(config, name).trains:
        return None
    seen = methods.with_own_training(config, name)
    own = methods.all_keywords(config, name)
    rounds = min(config.rounds, own.get("teacher_rounds", config.rounds))
    steps = own.get("steps", own.get("revisit_steps")) or _local_steps(seen, federation)
    return taught_plan(config, name, federation, repeat, on_own_labels(rounds, steps))


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
    return ShadowPlan(instructions, _identity(seen, name, described), learner)


@dataclass(frozen=True)
class StudentPlan:
    """Training plan of shadow students.

    Attributes:
        message: name of the student among the observed messages.
        schooling: sizes and steps of the teachers and the student, and the vote.
        rounds: number of the method's rounds.
        identity: cache key, equal for methods with equal shadows.
        teacher: makes the learner of the teachers.
        student: makes the learner of the student.
    """

    message: str
    schooling: Schooling
    rounds: int
    identity: str
    teacher: Callable[..., Learner]
    student: Callable[..., Learner]


def student_plan(
    config: ConfigDict, name: str, federation: Federation, repeat: int
) -> StudentPlan | None:
    """Return the plan of shadow students; None for a method without a student."""
    if methods.factory_of(config, name) is not pate:
        return None
    own = methods.all_keywords(config, name)
    seen = methods.with_own_training(config, name)
    gamma = float(own["gamma"])

    def vote(votes: np.ndarray, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        voters = speaking(np.arange(len(votes)), votes)
        return noisy_vote(
            votes, voters, key, Communication(), num_classes=federation.num_classes, gamma=gamma
        )

    sizes = tuple(map(len, federation.partition.labeled))
    schooling = Schooling(
        sizes=sizes,
        voters=int(config.cohort_size) or len(sizes),
        rounds=int(own["teacher_rounds"]),
        steps=int(own["steps"]),
        student_rounds=int(config.rounds - own["teacher_rounds"] + 1),
        student_steps=int(own["student_steps"]),
        vote=vote,
    )
    return StudentPlan(
        STUDENT,
        schooling,
        int(config.rounds),
        _identity(seen, name, [gamma, *schooling[:-1]]),
        _learner_of(seen, name, "learner", federation, repeat),
        _learner_of(seen, name, "server_learner", federation, repeat),
    )


def _learner_of(
    seen: ConfigDict, name: str, ingredient: str, federation: Federation, repeat: int
) -> Callable[..., Learner]:
    """Return a function: keywords of a network -> learner; without keywords, the method's ingredient."""
    execution = Execution(seen.execution.workers)
    has_learners = methods.needs(seen, name).has_learners

    def learner(**network: Any) -> Learner:
        if not has_learners:
            training = make_training(seen, federation, repeat, execution)
            return LEARNERS["network"](training=training, **network)
        asked = "network" if network else ingredient
        made: Any = ingredients((asked,), seen, federation, repeat, execution)[asked]
        return made(**network) if network else made

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
