"""What learners refuse."""

from functools import cache, partial

import numpy as np
import refusals
from small_training import KEY, federation_of, training_of

from jaxfed.learners import LEARNERS, PublicTargets, mixed
from jaxfed.training.local.batches import Batches

FEDERATION, U = federation_of([5, 4]), np.zeros((6, 4), np.float32)
tree = partial(LEARNERS["decision_tree"], num_classes=3)


@cache
def network(**keywords):
    return LEARNERS["network"](training=training_of(Batches("joint", 4, 1)), **keywords)


@cache
def started(learner):
    return learner, learner.init(KEY, FEDERATION)


def fit(learner, **change):
    """A step on public examples of which something is changed."""
    taught = PublicTargets(U, np.zeros(6, np.int32), np.ones(6, np.float32))._replace(**change)
    made, state = started(learner)
    return made.fit(state, FEDERATION.cohort(), taught, KEY, 1)


test_refused = refusals.table(
    {
        "decision_tree.pseudo_weight=-1.0: use": lambda: tree(pseudo_weight=-1.0),
        "network.public_loss='l3'": lambda: network(public_loss="l3"),
        "public_loss='soft_cross_entropy': needs soft targets": lambda: fit(
            network(public_loss="soft_cross_entropy")
        ),
        "mixed: no learner": lambda: mixed([]),
        "mixed: 3 learners and 2 clients": lambda: mixed([tree()] * 3).init(KEY, FEDERATION),
    }
)
