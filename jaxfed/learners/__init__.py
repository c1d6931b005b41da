"""Learners of clients in methods that share labels, not parameters: any supervised learner, one protocol.

    learner = LEARNERS["network"](training=training)                 # jaxfed.training's ingredients
    learner = LEARNERS["decision_tree"](num_classes=C, max_depth=4)
    learner = LEARNERS["estimator"](num_classes=C, estimator="sklearn.svm.SVC", C=10.0)
    learner = mixed([learner, ...])                                  # clients with different learners

Networks train as in `jaxfed.training`, all clients in one program; trees and other estimators
(`jaxfed.estimators`) in processes. Learners from elsewhere are registered by `LEARNERS.register(name)`
(`jaxfed.registry`). A factory's keywords are settings, except `INGREDIENTS`, which a run makes for it. The
methods decide on the targets of learning. `jaxfed.algorithms` and the wings above import it.
"""

from collections.abc import Callable

from jaxfed.learners import refitting
from jaxfed.learners.learner import Fitted, Learner, PublicTargets
from jaxfed.learners.mixed import mixed
from jaxfed.learners.networks import network
from jaxfed.registry import Registry

__all__ = ["INGREDIENTS", "LEARNERS", "Fitted", "Learner", "PublicTargets", "mixed", "network"]

_BUILT_IN: dict[str, Callable[..., Learner]] = {
    "network": network,
    "decision_tree": refitting.decision_tree,
    "random_forest": refitting.random_forest,
    "xgboost": refitting.xgboost,
    "rulefit": refitting.rulefit,
    "estimator": refitting.estimator,
}
LEARNERS = Registry("learner", _BUILT_IN)
INGREDIENTS = ("training", "num_classes", "execution")
"""Keywords of a learner that a run makes for it."""
