"""Learners by name: their keywords, and those of others that are registered."""

import inspect

import pytest
from small_training import training_of

from jaxfed.errors import UsageError
from jaxfed.learners import LEARNERS, Learner
from jaxfed.training.local.batches import Batches

OWN = {
    "network": {"public_batch_size", "pseudo_weight", "public_loss"},
    "decision_tree": {"max_depth"},
    "random_forest": {"num_trees", "max_depth"},
    "xgboost": {"num_trees", "max_depth", "learning_rate"},
    "rulefit": {"tree_size", "max_rules"},
    "estimator": {"estimator", "settings"},
}


@pytest.mark.parametrize("name", OWN)
def test_signatures_say_what_there_is_to_set(name):
    parameters = set(inspect.signature(LEARNERS[name]).parameters)
    common = {"num_classes", "pseudo_weight", "execution"}
    assert parameters == OWN[name] | ({"training"} if name == "network" else common)
    assert OWN.keys() == set(LEARNERS)
    assert LEARNERS[name].__doc__


def test_made_by_name():
    training = training_of(Batches("joint", 4, 1))
    assert isinstance(LEARNERS["network"](training=training), Learner)
    for name in ("decision_tree", "random_forest"):
        assert LEARNERS[name](num_classes=3, pseudo_weight=0.5).predict_proba is not None
    assert LEARNERS["estimator"](num_classes=3, estimator="sklearn.svm.SVC", C=3.0).scores is None
    assert (
        LEARNERS["estimator"](num_classes=3, estimator="sklearn.svm.LinearSVC").predict_proba
        is None
    )


def test_others_are_registered():
    def mine(*, num_classes, depth=3):
        raise NotImplementedError

    try:
        assert LEARNERS.register("mine")(mine) is mine
        assert LEARNERS.from_outside() == ("mine",)
    finally:
        del LEARNERS["mine"]
    with pytest.raises(UsageError, match=r"^learner 'xgboost': is one of jaxfed's own"):
        LEARNERS.register("xgboost")
