"""One client's classifier: scikit-learn's own answers, mapped back to all classes; mistakes in one line."""

import subprocess
import sys

import bad_estimators
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from jaxfed.estimators.client_model import Task, fitted, fitted_or_why
from jaxfed.learners import LEARNERS

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 2, 2)).astype(np.float32)
Y = (X.reshape(120, 4) @ RNG.standard_normal((4, 3))).argmax(axis=1).astype(np.int32)
WEIGHT = np.linspace(0.1, 2, 120).astype(np.float32)
NEW = RNG.standard_normal((50, 2, 2)).astype(np.float32)


def recipe_of(learner, **settings):
    return LEARNERS[learner](num_classes=3, **settings).fit.__self__.spec


def task_of(spec, classes=(0, 1, 2), weight=WEIGHT):
    return Task(spec, X, np.asarray(classes, np.int32)[Y], weight, 5)


LINEAR = "sklearn.linear_model.LogisticRegression"
SAME = {
    "decision_tree": (
        recipe_of("decision_tree", max_depth=4),
        DecisionTreeClassifier(max_depth=4, random_state=5),
        {"sample_weight": WEIGHT},
    ),
    "logistic_regression": (
        recipe_of("estimator", estimator=LINEAR, C=2.0, max_iter=1000),
        LogisticRegression(C=2.0, max_iter=1000),
        {"sample_weight": WEIGHT},
    ),
    "by_path": (
        recipe_of("estimator", estimator="sklearn.tree.ExtraTreeClassifier", max_depth=3),
        ExtraTreeClassifier(max_depth=3, random_state=5),
        {"sample_weight": WEIGHT},
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_answers_are_those_of_the_estimator_on_own_classes(name):
    """Classes 1, 4 and 6 of eight are a client's own; the others have the probability 0."""
    spec, peer, weights = SAME[name]
    model = fitted(task_of(spec, classes=(1, 4, 6)))
    peer.fit(X.reshape(120, 4), Y, **weights)
    flat = NEW.reshape(50, 4)
    labels = model.labels(NEW)
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels, np.array([1, 4, 6])[peer.predict(flat)])
    spread = model.probabilities(NEW, 8)
    assert spread.dtype == np.float32
    np.testing.assert_allclose(spread[:, [1, 4, 6]], peer.predict_proba(flat), rtol=1e-5, atol=1e-7)
    assert not spread[:, [0, 2, 3, 5, 7]].any()
    own = np.mean(peer.predict(X.reshape(120, 4)) == Y)
    assert model.fit_accuracy == pytest.approx(own)


def test_rows_of_weight_zero_are_left_out_and_weights_given_where_they_are_taken(monkeypatch):
    bad_estimators.install(monkeypatch)
    seen = []
    spec = recipe_of("estimator", estimator="sklearn.dummy.Recording", seen=seen)
    weight = np.where(np.arange(120) % 3, WEIGHT, 0)
    fitted(task_of(spec, classes=(3, 5, 9), weight=weight))
    ((x, y, given, seed),) = seen
    np.testing.assert_array_equal(x, X.reshape(120, 4)[weight > 0])
    np.testing.assert_array_equal(y, Y[weight > 0])
    np.testing.assert_array_equal(given, weight[weight > 0])
    assert seed == 5
    assert not spec.has_probabilities


def test_bytes_are_read_as_shares_and_one_class_needs_no_estimator():
    spec = recipe_of("estimator", estimator=LINEAR)
    x = RNG.integers(0, 256, (30, 3, 3, 1)).astype(np.uint8)
    y = (x[:, 0, 0, 0] > 127).astype(np.int32)
    ones = np.ones(30, np.float32)
    as_bytes = fitted(Task(spec, x, y, ones, 0))
    as_floats = fitted(Task(spec, x.astype(np.float32) / 255, y, ones, 0))
    np.testing.assert_array_equal(
        as_bytes.probabilities(x, 2), as_floats.probabilities(x / np.float32(255), 2)
    )
    only = fitted(Task(spec, x, np.full(30, 2, np.int32), ones, 0))
    assert only.estimator is None
    np.testing.assert_array_equal(only.labels(x), np.full(30, 2))
    np.testing.assert_array_equal(only.probabilities(x, 4), np.eye(4, dtype=np.float32)[[2] * 30])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raises", "RuntimeError: no split at all"),
        ("classes", "ValueError: predicts np.int64(7), a class that it was not given"),
        ("fractions", "ValueError: predicts np.float64(0.5), a class that it was not given"),
        ("length", "ValueError: predicts an array (121,) for 120 examples"),
        ("nan", "ValueError: has scores that are nan or infinite"),
        ("columns", "ValueError: has scores (120, 1) for 120 examples of 3 classes"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(monkeypatch, how, why):
    bad_estimators.install(monkeypatch)
    task = task_of(recipe_of("estimator", estimator="sklearn.dummy.Bad", how=how))
    assert fitted(task).fit_accuracy < 1
    spoiled = X.copy()
    spoiled[0] = 101
    assert fitted_or_why(task._replace(x=spoiled)) == why


def test_worker_processes_import_no_jax():
    code = "import sys, jaxfed.estimators.client_model; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
