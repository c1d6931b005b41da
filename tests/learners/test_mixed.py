"""Clients with learners of different kinds: each is taught as it would be among its like."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from small_training import KEY, federation_of

from jaxfed.host.checkpoint import Checkpoints
from jaxfed.learners import LEARNERS, Fitted, Learner, PublicTargets, mixed
from jaxfed.testing.method_checks import assert_equal

FEDERATION = federation_of([12, 9, 7, 8, 10])
U = FEDERATION.x[FEDERATION.test]
NAMES = ("decision_tree", "random_forest")
ORDER = np.array([4, 1, -1, 0], np.int32)


def estimator(name):
    return LEARNERS[name](num_classes=3)


def public_targets():
    label = np.random.default_rng(0).integers(3, size=len(U)).astype(np.int32)
    return PublicTargets(U, label, np.ones(len(U), np.float32), None)


def alone(part):
    """What the clients of one part come to without the others: its learner, its outcome."""
    learner, key = estimator(NAMES[part]), jax.random.fold_in(KEY, part)
    own = {n: split[part::2] for n, split in FEDERATION.partition._asdict().items()}
    federation = replace(FEDERATION, partition=FEDERATION.partition._replace(**own))
    state = learner.init(key, federation)
    return learner, learner.fit(state, federation.cohort(), public_targets(), key, 2)


def test_each_client_is_as_among_its_like(tmp_path):
    made = mixed([estimator(name) for name in NAMES])
    start = made.init(KEY, FEDERATION)
    state, failed, metrics = made.fit(start, FEDERATION.cohort(), public_targets(), KEY, 2)
    assert not failed
    peers = [alone(part) for part in range(2)]
    assert_equal(state, tuple(outcome.state for _, outcome in peers))
    accuracy = [outcome.metrics["fit_accuracy"] for _, outcome in peers]
    mean = (3 * accuracy[0] + 2 * accuracy[1]) / 5
    assert metrics == {"clients": 5, "fit_accuracy": pytest.approx(mean)}
    votes, spread = made.predict(state, ORDER, U), made.predict_proba(state, ORDER, U)
    assert made.scores is None
    for place, client in ((0, 4), (1, 1), (3, 0)):
        learner, outcome = peers[client % 2]
        own = np.array([client // 2])
        np.testing.assert_array_equal(votes[place], learner.predict(outcome.state, own, U)[0])
        np.testing.assert_array_equal(
            spread[place], learner.predict_proba(outcome.state, own, U)[0]
        )
    assert (votes[2] == -1).all()
    Checkpoints(tmp_path).save(1, state, {})
    saved = Checkpoints(tmp_path).latest().state(template=start)
    np.testing.assert_array_equal(made.predict(saved, ORDER, U), votes)


def broken(key, federation):
    return np.zeros(federation.num_clients)


def failing(state, cohort, taught, key, steps):
    return Fitted(state, {int(client): "no" for client in cohort.client_id}, {"clients": 0})


def test_failures_have_the_clients_own_numbers_and_labels_alone_may_be_all():
    no_good = Learner(broken, failing, predict=lambda state, ids, x: np.zeros((len(ids), len(x))))
    made = mixed([estimator("decision_tree"), no_good])
    _, failed, metrics = made.fit(made.init(KEY, FEDERATION), FEDERATION.cohort(), None, KEY, 1)
    assert failed == {1: "no", 3: "no"}
    assert metrics == {"clients": 3, "fit_accuracy": 1}
    assert made.predict_proba is None
