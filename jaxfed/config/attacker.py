"""What an attacker trains to know what models say of examples: shadows of a method's models, by its config.

The attacker is the server, which has the config: the network and its optimizer, the learner, how many
rounds and steps there are. It trains shadows as clients of local learning train (`jaxfed.learners`), on
labels alone, for as many steps as a client of the method takes. What a method adds to that (a mean every
round, unlabeled examples, prototypes, a consensus) shadows lack: they say how hard an example is, and of a
method that differs much from local learning they say it less well.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import learner_ingredients, methods
from jaxfed.config.assembly import make_training
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution import Execution
from jaxfed.learners import LEARNERS, Learner
from jaxfed.training.ingredients import Training


class ShadowPlan(NamedTuple):
    """How shadows of a method are trained.

    Fields:
        rounds: of the method in which its clients learn from their own labels.
        steps: local steps of each.
        identity: the same for methods whose shadows are the same.
        learner: makes them.
    """

    rounds: int
    steps: int
    identity: str
    learner: Callable[[], Learner]


def shadow_plan(
    config: ConfigDict, name: str, federation: Federation, repeat: int
) -> ShadowPlan | None:
    """The plan of a method's shadows; None of one that trains nothing."""
    if not methods.trains(config, name):
        return None
    seen = methods.with_own_training(config, name)
    own = methods.all_keywords(config, name)
    rounds = min(config.rounds, own.get("teacher_rounds", config.rounds))
    steps = own.get("steps", own.get("revisit_steps")) or _local_steps(seen, federation)
    execution = Execution(config.execution.workers)

    def training_of(clients: Federation) -> Training:
        return make_training(seen, clients, repeat, execution)

    has_learners = methods.has_learners(config, name)

    def learner() -> Learner:
        if not has_learners:
            return LEARNERS["network"](training=training_of(federation))
        made: Learner = learner_ingredients.ingredients(
            seen, name, ("learner",), federation, training_of, execution
        )["learner"]
        return made

    described = {
        "training": seen.training.to_dict(),
        "model": seen.model.to_dict(),
        "learner": seen.learner.to_dict() if has_learners else {"name": "network", "names": ()},
        "rounds": rounds,
        "steps": steps,
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    return ShadowPlan(rounds, steps, digest[:12], learner)


def _local_steps(seen: ConfigDict, federation: Federation) -> int:
    """Of a client with as many labels as any, a round."""
    wanted = seen.training
    if wanted.local_steps:
        return int(wanted.local_steps)
    size = wanted.batch_size or federation.max_labels
    return int(wanted.epochs * math.ceil(federation.max_labels / size))
