"""Learners by name: their keywords, and those of others that are registered."""

import functools
import inspect

import numpy as np
import pytest
from small_training import KEY, federation_of, training_of

from jaxfed.errors import UsageError
from jaxfed.learners import LEARNERS, Learner, Taught
from jaxfed.training.local.batches import Batches

OWN = {
    "network": {"public_batch_size", "pseudo_weight", "public_loss"},
    "decision_tree": {"max_depth"},
    "random_forest": {"num_trees", "max_depth"},
    "xgboost": {"num_trees", "max_depth", "learning_rate"},
    "rulefit": {"tree_size", "max_rules"},
    "logistic_regression": {"inverse_penalty", "max_steps"},
    "estimator": {"estimator", "is_scaled", "settings"},
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
    for name in ("decision_tree", "random_forest", "logistic_regression"):
        assert LEARNERS[name](num_classes=3, pseudo_weight=0.5).predict_proba is not None
    assert LEARNERS["estimator"](num_classes=3, estimator="sklearn.svm.SVC", C=3.0).scores is None
    assert (
        LEARNERS["estimator"](num_classes=3, estimator="sklearn.svm.LinearSVC").predict_proba
        is None
    )


@pytest.mark.parametrize(
    ("name", "keywords", "message"),
    [
        ("decision_tree", {"max_depth": -1}, r"^decision_tree.max_depth=-1: use"),
        ("decision_tree", {"pseudo_weight": -1.0}, r"^decision_tree.pseudo_weight=-1.0: use"),
        ("decision_tree", {"depth": 3}, r"^decision_tree: .* 'depth'"),
        ("estimator", {"estimator": "os.system"}, r"^estimator='os.system': use"),
    ],
)
def test_wrong_keywords_in_one_line(name, keywords, message):
    with pytest.raises(UsageError, match=message) as caught:
        LEARNERS[name](num_classes=3, **keywords)
    assert "\n" not in str(caught.value)


U = np.zeros((6, 4), np.float32)


@functools.cache
def started(name):
    federation, training = federation_of([5, 4]), training_of(Batches("joint", 4, 1))
    given = {"training": training} if name == "network" else {"num_classes": 3}
    learner = LEARNERS[name](**given)
    return learner, learner.init(KEY, federation), federation.cohort()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": U.astype(np.uint8)},
            r"^public examples are uint8 \(4,\), clients' own float32 \(4,\)",
        ),
        ({"x": U[:, :3]}, r"^public examples are float32 \(3,\), clients' own float32 \(4,\)"),
        (
            {"label": np.zeros(5, np.int32)},
            r"^taught.label: shape \(5,\) for 6 public examples and 2",
        ),
        ({"weight": np.ones((3, 6))}, r"^taught.weight: shape \(3, 6\) for 6 public"),
        ({"soft": np.ones((6,))}, r"^taught.soft: shape \(6,\) for 6 public"),
    ],
)
@pytest.mark.parametrize("name", ["network", "decision_tree"])
def test_what_is_taught_is_like_what_clients_have(name, change, message):
    learner, state, cohort = started(name)
    taught = Taught(U, np.zeros(6, np.int32), np.ones(6, np.float32))._replace(**change)
    with pytest.raises(UsageError, match=message):
        learner.fit(state, cohort, taught, KEY, 1)


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
