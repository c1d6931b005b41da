"""What an attacker trains to know what models say of examples: shadows of a method's models, by its config.

The attacker is the server, which has the config: the network and its optimizer, the learner, how many
rounds and steps there are. It trains shadows as clients of local learning train (`jaxfed.learners`), on
labels alone, for as many steps as a client of the method takes; and once more, where a method sends its
clients public targets, with what the attacked run sent (`taught_plan`). PATE's student is attacked by
students of ensembles of the attacker's own (`student_plan`). What a method adds besides (a mean every round,
unlabeled examples, prototypes) shadows lack: they say how hard an example is, and of a method that differs
much from local learning they say it less well.
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
from jaxfed.config import learner_ingredients, methods
from jaxfed.config.assembly import make_training
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import Execution
from jaxfed.federation.exposure import Instruction
from jaxfed.learners import LEARNERS, Learner
from jaxfed.learners.turn import speaking
from jaxfed.training.ingredients import Training


@dataclass(frozen=True)
class ShadowPlan:
    """How shadows of a method are trained.

    Attributes:
        instructions: of the method's rounds in which its clients learn from their own labels.
        identity: the same for methods whose shadows are the same.
        learner: keywords of a network -> learner.
    """

    instructions: Sequence[Sequence[Instruction]]
    identity: str
    learner: Callable[..., Learner]

    @property
    def rounds(self) -> int:
        """How many."""
        return len(self.instructions)


def shadow_plan(
    config: ConfigDict, name: str, federation: Federation, repeat: int
) -> ShadowPlan | None:
    """The plan of shadows that learn as clients alone do; None of a method that trains nothing."""
    if not methods.trains(config, name):
        return None
    seen = methods.with_own_training(config, name)
    own = methods.all_keywords(config, name)
    rounds = min(config.rounds, own.get("teacher_rounds", config.rounds))
    steps = own.get("steps", own.get("revisit_steps")) or _local_steps(seen, federation)
    return _plan(seen, name, federation, repeat, on_own_labels(rounds, steps))


def taught_plan(
    config: ConfigDict,
    name: str,
    federation: Federation,
    repeat: int,
    instructions: Sequence[Sequence[Instruction]],
) -> ShadowPlan:
    """The plan of shadows that are taught what a method's clients were, by its rounds' instructions."""
    seen = methods.with_own_training(config, name)
    return _plan(seen, name, federation, repeat, instructions)


@dataclass(frozen=True)
class StudentPlan:
    """How shadows of a student are trained.

    Attributes:
        message: what the student is called among what is seen.
        schooling: its own, its teachers' and the vote.
        rounds: of the method.
        identity: the same for methods whose shadows are the same.
        teacher: -> learner.
        student: -> learner.
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
    """The plan of shadow students; None of a method without a student."""
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


def _plan(
    seen: ConfigDict,
    name: str,
    federation: Federation,
    repeat: int,
    instructions: Sequence[Sequence[Instruction]],
) -> ShadowPlan:
    described = [list(map(_described, told)) for told in instructions]
    learner = _learner_of(seen, name, "learner", federation, repeat)
    return ShadowPlan(instructions, _identity(seen, name, described), learner)


def _learner_of(
    seen: ConfigDict, name: str, ingredient: str, federation: Federation, repeat: int
) -> Callable[..., Learner]:
    """Keywords of a network -> learner; without any that which the method calls its ingredient."""
    execution = Execution(seen.execution.workers)
    has_learners = methods.has_learners(seen, name)

    def training_of(clients: Federation) -> Training:
        return make_training(seen, clients, repeat, execution)

    def learner(**network: Any) -> Learner:
        if not has_learners:
            return LEARNERS["network"](training=training_of(federation), **network)
        asked = "network" if network else ingredient
        made = learner_ingredients.ingredients(
            seen, name, (asked,), federation, training_of, execution
        )[asked]
        return made(**network) if network else made

    return learner


def _identity(seen: ConfigDict, name: str, instructions: list[Any]) -> str:
    """A digest of all that shadows' training follows from, of clients of one repeat."""
    has_learners = methods.has_learners(seen, name)
    described = {
        "training": seen.training.to_dict(),
        "model": seen.model.to_dict(),
        "learner": seen.learner.to_dict() if has_learners else {"name": "network", "names": ()},
        "instructions": instructions,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]


def _described(one: Instruction) -> list[Any]:
    """All of it that JSON can say, arrays by their digests."""
    return [
        hashlib.sha256(value.tobytes()).hexdigest() if isinstance(value, np.ndarray) else value
        for value in one
    ]


def _local_steps(seen: ConfigDict, federation: Federation) -> int:
    """Of a client with as many labels as any, a round."""
    wanted = seen.training
    if wanted.local_steps:
        return int(wanted.local_steps)
    size = wanted.batch_size or federation.max_labels
    return int(wanted.epochs * math.ceil(federation.max_labels / size))
