"""Estimators as learners: who is taught what, what a state holds, resumes, processes, clients that fail."""

import dataclasses
from functools import partialmethod

import bad_estimators
import jax
import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier
from small_training import KEY, federation_of

from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution import Execution
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.learners import LEARNERS, PublicTargets, refitting
from jaxfed.learners.learner import SPOILED
from jaxfed.testing.method_checks import assert_equal, padded
from jaxfed.training import server_state

FEDERATION = federation_of([24, 14, 9, 11], num_labeled=20)
U = FEDERATION.x[FEDERATION.test]
ALL = np.arange(4, dtype=np.int32)


def learner(name="decision_tree", **keywords):
    return LEARNERS[name](num_classes=3, **keywords)


def public_targets(seed=0):
    """Labels of three in four public examples, the others abstained or of weight 0."""
    rng = np.random.default_rng(seed)
    label = rng.integers(-1, 3, size=len(U)).astype(np.int32)
    weight = rng.choice(np.float32([0, 0.5, 1]), size=label.shape)
    return PublicTargets(U, label, weight, None)


def fitted(made, taught=None, cohort=None, state=None):
    state = made.init(KEY, FEDERATION) if state is None else state
    return made.fit(state, cohort or FEDERATION.cohort(), taught, KEY, 1)


def peer(client, seed, label, weight, pseudo_weight):
    """scikit-learn's tree on the client's own rows and the public ones that count."""
    rows, counts = FEDERATION.partition.labeled[client], (label >= 0) & (weight > 0)
    return DecisionTreeClassifier(random_state=int(seed)).fit(
        np.concatenate([FEDERATION.x[rows], U[counts]]),
        np.concatenate([FEDERATION.y[rows], label[counts]]),
        sample_weight=np.concatenate([np.ones(len(rows)), pseudo_weight * weight[counts]]),
    )


def test_each_client_is_fitted_on_its_own_and_on_what_it_is_taught():
    made = learner(pseudo_weight=0.3)
    taught = public_targets()
    state, failed, metrics = fitted(made, taught)
    assert not failed
    assert metrics == {"fit_accuracy": 1, "clients": 4}
    seeds = state.data.seed
    assert len(set(seeds.tolist())) == 4
    peers = [peer(c, seeds[c], taught.label, taught.weight, 0.3) for c in range(4)]
    x = np.random.default_rng(9).standard_normal((40, 4)).astype(np.float32)
    order = np.array([2, -1, 0], np.int32)
    votes, spread = made.predict(state, order, x), made.predict_proba(state, order, x)
    assert (votes.dtype, spread.dtype) == (np.int32, np.float32)
    for place in (0, 2):
        np.testing.assert_array_equal(votes[place], peers[order[place]].predict(x))
        np.testing.assert_allclose(spread[place], peers[order[place]].predict_proba(x))
    assert made.predict(state, ALL, x[:0]).shape == (4, 0)


def test_who_else_takes_part_padding_and_order_change_nothing():
    made, taught = learner(), public_targets()
    together = fitted(made, taught).state
    backwards = Cohort(*(field[::-1] for field in FEDERATION.cohort()))
    assert_equal(together, fitted(learner(), taught, backwards).state)
    some = fitted(learner(), taught, padded(FEDERATION.cohort([2, 0]), 7.0)).state
    np.testing.assert_array_equal(some.is_fitted, [True, False, True, False])
    rows = [0, 2]
    assert_equal(*(jax.tree.map(lambda leaf: leaf[rows], s) for s in (together, some)))
    votes = made.predict(some, ALL, U)
    np.testing.assert_array_equal(votes[rows], made.predict(together, ALL, U)[rows])
    assert (votes[[1, 3]] == -1).all()
    assert not made.predict_proba(some, ALL, U)[[1, 3]].any()


@pytest.mark.parametrize(
    ("name", "quickly_copied"),
    [
        ("decision_tree", 2**20),
        ("decision_tree", 0),
        ("random_forest", 2**20),
        ("random_forest", 0),
    ],
)
def test_resumed_equals_uninterrupted(name, quickly_copied, tmp_path, monkeypatch):
    """A learner that has never seen the state predicts as the one that made it: it fits again."""
    monkeypatch.setattr(server_state, "COPIED_ON_CPU", quickly_copied)
    keywords = {"num_trees": 5} if name == "random_forest" else {}
    made = learner(name, **keywords)
    state = fitted(made, public_targets()).state
    Checkpoints(tmp_path).save(1, state, {})
    again = learner(name, **keywords)
    template = again.init(KEY, dataclasses.replace(FEDERATION, public=FEDERATION.test))
    saved = Checkpoints(tmp_path).latest().state(template=template)
    assert_equal(saved, state)
    np.testing.assert_array_equal(again.predict(saved, ALL, U), made.predict(state, ALL, U))
    np.testing.assert_array_equal(
        again.predict_proba(saved, ALL, U), made.predict_proba(state, ALL, U)
    )
    next_round = [
        fitted(one, public_targets(1), state=s).state for one, s in ((made, state), (again, saved))
    ]
    assert_equal(*next_round)


@pytest.fixture
def counted(monkeypatch):
    """The tasks that are carried out."""
    tasks = []
    fit = refitting.fitted_or_why
    monkeypatch.setattr(refitting, "fitted_or_why", lambda task: tasks.append(task) or fit(task))
    return tasks


def test_the_same_data_are_not_fitted_twice(counted):
    made = learner()
    state = fitted(made, public_targets()).state
    assert len(counted) == 4
    made.predict(state, ALL, U)
    again = fitted(made, public_targets(), state=state).state
    assert_equal(again, state)
    assert len(counted) == 4
    changed = public_targets()
    changed.label[np.flatnonzero(changed.counts())[0]] ^= 1
    fitted(made, changed, FEDERATION.cohort([2]), state)
    assert len(counted) == 5
    votes = made.predict(state, ALL, U)
    newest = state
    for seed in range(1, 4):  # more models than are kept, two a client
        newest = fitted(made, public_targets(seed), state=newest).state
    assert len(counted) == 17
    made.predict(newest, ALL, U)
    assert len(counted) == 17
    np.testing.assert_array_equal(made.predict(state, ALL, U), votes)
    assert len(counted) == 21


def test_processes_give_the_same_models():
    alone = learner("random_forest", num_trees=3)
    beside = learner("random_forest", num_trees=3, execution=Execution(workers=1))
    state = fitted(alone, public_targets()).state
    assert_equal(fitted(beside, public_targets()).state, state)
    for ask in ("predict", "predict_proba"):
        np.testing.assert_array_equal(
            getattr(beside, ask)(state, ALL, U), getattr(alone, ask)(state, ALL, U)
        )


def bad(monkeypatch, how):
    bad_estimators.install(monkeypatch)
    return learner("estimator", estimator="sklearn.dummy.Bad", how=how)


@pytest.mark.parametrize("how", ["raises", "nan", "length"])
def test_a_client_that_fails_keeps_its_state_and_the_others_go_on(monkeypatch, how):
    made = bad(monkeypatch, how)
    before = fitted(made).state
    spoiled = FEDERATION.cohort([3, 1, 0])
    spoiled.x[1, 0, 0] = 101
    state, failed, metrics = fitted(made, public_targets(), spoiled, before)
    assert list(failed) == [1]
    assert "\n" not in failed[1]
    assert metrics["clients"] == 2
    data = jax.tree.map(lambda leaf: leaf[1], state.data)
    assert (data.label == -1).all()
    np.testing.assert_array_equal(data.labeled, before.data.labeled[1])
    assert (made.predict(state, ALL, U) == 0).all()


def test_a_client_without_a_valid_answer_is_named_and_the_others_answer(monkeypatch, caplog):
    made = bad(monkeypatch, "fractions")
    state = fitted(made).state
    whole = made.predict(state, np.array([2, 0]), U)

    def predict(self, x, wrong):
        return np.zeros(len(x)) if self.random_state == state.data.seed[0] else wrong(x)

    for answer, why in (
        (lambda x: np.full(len(x), 0.5), "ValueError: predicts np.float64(0.5)"),
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero"),
    ):
        monkeypatch.setattr(bad_estimators.Bad, "predict", partialmethod(predict, wrong=answer))
        said = made.predict(state, np.array([2, 0]), U)
        assert (said[0] == SPOILED).all()
        np.testing.assert_array_equal(said[1], whole[1])
        assert caplog.messages[-1].startswith(f"client 2: Bad: {why}")


@pytest.mark.parametrize(
    ("name", "package", "keywords"),
    [
        ("xgboost", "xgboost", {"num_trees": 5}),
        ("rulefit", "imodels", {"max_rules": 10}),
    ],
)
def test_estimators_of_other_packages(name, package, keywords):
    """They learn, also of a client that lacks a class, and come back the same after a resume."""
    pytest.importorskip(package)
    cohort = FEDERATION.cohort([0, 1])
    cohort.y[1][cohort.y[1] == 0] = -1
    label = FEDERATION.y[FEDERATION.test]
    taught = PublicTargets(U, np.where(label > 0, label, -1), np.ones(len(U), np.float32))
    made = learner(name, **keywords)
    state, failed, metrics = fitted(made, taught, cohort)
    assert not failed
    assert metrics["fit_accuracy"] > 0.8
    spread = made.predict_proba(state, ALL[:2], U)
    np.testing.assert_allclose(spread.sum(axis=-1), 1, rtol=1e-5)
    assert spread[0, :, 0].any()
    assert not spread[1, :, 0].any()
    again = learner(name, **keywords)  # which fits the second client's, of two classes, once more
    fitted(again, taught, Cohort(*(field[1:] for field in cohort)))
    np.testing.assert_array_equal(again.predict_proba(state, ALL[1:2], U), spread[1:])
