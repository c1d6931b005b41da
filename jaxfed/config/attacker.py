"""What an attacker trains to know what models say of examples: shadows of a method's models, by its config.

The attacker is the server, which has the config: the network and its optimizer, the learner, how many
rounds and steps there are. It trains shadows as clients of local learning train (`jaxfed.learners`), on
labels alone, for as many steps as a client of the method takes; and once more, where a method sends its
clients public targets, with what the attacked run sent (`taught_plan`). What a method adds besides (a mean
every round, unlabeled examples, prototypes) shadows lack: they say how hard an example is, and of a method
that differs much from local learning they say it less well.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.audit import on_own_labels
from jaxfed.config import learner_ingredients, methods
from jaxfed.config.assembly import make_training
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution import Execution
from jaxfed.federation.exposure import Instruction
from jaxfed.learners import LEARNERS, Learner
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


def _plan(
    seen: ConfigDict,
    name: str,
    federation: Federation,
    repeat: int,
    instructions: Sequence[Sequence[Instruction]],
) -> ShadowPlan:
    execution = Execution(seen.execution.workers)
    has_learners = methods.has_learners(seen, name)

    def training_of(clients: Federation) -> Training:
        return make_training(seen, clients, repeat, execution)

    def learner(**network: Any) -> Learner:
        if not has_learners:
            return LEARNERS["network"](training=training_of(federation), **network)
        asked = "network" if network else "learner"
        made = learner_ingredients.ingredients(
            seen, name, (asked,), federation, training_of, execution
        )[asked]
        return made(**network) if network else made

    described = {
        "training": seen.training.to_dict(),
        "model": seen.model.to_dict(),
        "learner": seen.learner.to_dict() if has_learners else {"name": "network", "names": ()},
        "instructions": [list(map(_described, told)) for told in instructions],
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    return ShadowPlan(instructions, digest[:12], learner)


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
