"""Shadow students: each is a run of the method itself on other examples; they know more of its student."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from kernel_regression import CLASSES, overfitted_clients, regression
from shown_methods import shown
from small_training import federation_of, training_of
from threadpoolctl import threadpool_limits
from toy_learner import clients, toy

from jaxfed.algorithms.pate import noisy_vote, pate
from jaxfed.audit.attacks import attacks, each
from jaxfed.audit.observations import AuditTargets, drawn_targets, observations
from jaxfed.audit.shadows import (
    EnsemblePlan,
    on_own_labels,
    shadow_answers,
    shadow_federation,
    shadow_memberships,
    student_answers,
    teacher_parts,
)
from jaxfed.audit.surface import STUDENT
from jaxfed.federation.communication import Communication
from jaxfed.learners import mixed, network
from jaxfed.learners.client_fit import speaking
from jaxfed.training.local.batches import Batches

KEY = jax.random.key(5)


def vote(votes, key, *, gamma=0.0):
    voters = speaking(np.arange(len(votes)), votes)
    return noisy_vote(votes, voters, key, Communication(), num_classes=CLASSES, gamma=gamma)


def schooling(*sizes, voters=0, rounds=1, student_rounds=1, asks=vote):
    return EnsemblePlan(sizes, voters or len(sizes), rounds, 1, student_rounds, 2, asks)


TOYS = clients()
OWNED, HELD_OUT = np.concatenate(TOYS.partition.labeled), np.r_[TOYS.test, TOYS.validation]
OF_TOYS = AuditTargets(
    np.concatenate([OWNED, HELD_OUT[:33]]),
    np.zeros(66, np.int32),
    np.repeat([True, False], 33),
    HELD_OUT[33:],
)


def warm(**how):
    """Goes on from round to round."""
    return toy(**how)._replace(continues=True)


def of_toys(number=4, *, teacher=warm, student=warm, seed=0, observed=(1,), key=KEY, **how):
    is_in = shadow_memberships(66, 33, number, seed)
    lesson = schooling(9, 5, 12, 7, **how)
    given = TOYS, OF_TOYS, is_in
    said = student_answers(teacher, student, *given, ensemble=lesson, observed=observed, key=key)
    return said, is_in


def test_everybody_in_has_one_teacher():
    is_in = shadow_memberships(60, 30, 6, seed=1)
    parts = teacher_parts(is_in, (20, 5, 5), KEY)
    np.testing.assert_array_equal(parts.sum(axis=0), is_in)
    assert parts.sum(axis=2).tolist() == [[20] * 6, [5] * 6, [5] * 6]
    assert (parts[:, 0] != parts[:, 2]).any()


@pytest.mark.parametrize("voters", [4, 3])
def test_a_shadow_is_a_run_of_the_method(voters):
    """Of clients that have a shadow's parts: its student learns what its own teachers say, nobody else's."""
    said, is_in = of_toys(voters=voters, rounds=2, student_rounds=2, observed=(1, 2, 3))
    parts = teacher_parts(is_in, (9, 5, 12, 7), KEY)
    assert sorted(said) == [2, 3]  # before the vote there is no student
    x, given = TOYS.x[OF_TOYS.examples], {"learner": warm(), "server_learner": warm()}
    given |= {"public": TOYS.public_examples, "num_classes": CLASSES}
    method = pate(**given, teacher_rounds=2, steps=1, student_steps=2)
    labels = []
    for r in range(4):
        played = shadow_federation(TOYS, OF_TOYS, parts[:, r])
        state = method.init(KEY, played)
        for number in (1, 2, 3):
            state, _ = method.round(state, played.cohort(range(voters)), KEY)
            if number in said:
                np.testing.assert_array_equal(said[number].answers[r], method.predict(state, x))
        labels.append(tuple(state.label.tolist()))
    assert len(set(labels)) == 4  # or other ensembles' votes would do
    for shadows in said.values():
        np.testing.assert_array_equal(shadows.is_in, is_in)


def test_every_ensemble_has_noise_of_its_own():
    heard = []

    def asks(votes, key):
        heard.append((votes, vote(votes, key, gamma=0.3), jax.random.key_data(key).tolist()))
        return heard[-1][1]

    once, again, other = (
        of_toys(asks=asks, key=key)[0][1] for key in (KEY, KEY, jax.random.key(6))
    )
    np.testing.assert_array_equal(once.answers, again.answers)
    assert (once.answers != other.answers).any()
    assert len({tuple(key) for *_, key in heard[:4]}) == 4
    assert all((vote(votes, KEY)[0] != label).any() for votes, (label, _), _ in heard)


def test_who_fails_is_silent():
    """Of teachers that cannot be fitted nobody hears; students without a model are no shadows.

    A teacher's old model would answer, as a network does that its last steps have spoiled.
    """
    heard, failing = [], toy(fails=(1,))

    def init(key, federation):
        state = failing.init(key, federation)
        return state._replace(is_there=~state.is_there)

    def asks(votes, key):
        heard.append((votes < 0).all(axis=1).tolist())
        return vote(votes, key)

    said, is_in = of_toys(
        teacher=lambda: failing._replace(init=init), student=lambda: toy(fails=(3,)), asks=asks
    )
    silent = np.argwhere(heard).tolist()  # ensemble, and place of the teacher
    assert silent == [[0, 1], [1, 0], [2, 3], [3, 2]]
    np.testing.assert_array_equal(said[1].is_in, is_in[:3])
    assert len(said[1].answers) == 3


def constant(label):
    def predict(state, client_id, x):
        return np.full((len(client_id), len(x)), label, np.int32)

    return toy()._replace(predict=predict)


def test_an_ensemble_of_a_mixture_is_a_mixture():
    heard = []

    def asks(votes, key):
        heard.append(sorted(votes[:, 0].tolist()))
        return vote(votes, key)

    of_toys(teacher=lambda: mixed([constant(0), constant(2)]), asks=asks)
    assert heard == [[0, 0, 2, 2]] * 4


@pytest.mark.slow
def test_networks_are_students_to_the_bit():
    federation = federation_of([12, 12])
    federation = replace(federation, public=federation.test[:9], test=federation.test[9:])
    targets = drawn_targets(federation, members=4, population=3, seed=0)
    is_in = shadow_memberships(16, 8, 4, seed=0)
    learner = network(training=training_of(Batches("joint", 4, 1)), public_batch_size=4)
    made = partial(student_answers, lambda: learner, lambda: learner, federation, targets, is_in)
    runs = [
        made(
            ensemble=schooling(12, 12, rounds=2, student_rounds=2),
            observed=observed,
            key=KEY,
        )
        for observed in ((2, 3), (3,))
    ]
    np.testing.assert_array_equal(runs[0][3].answers, runs[1][3].answers)
    assert (runs[0][3].answers != runs[0][2].answers).any()
    assert (runs[0][3].answers[0] != runs[0][3].answers[1]).any()


OWN, PUBLIC, SHADOWS, SEEDS = 20, 100, 64, 6
BY_SHADOWS = ("lira_offline", "lira_online", "rmia_offline", "rmia_online", "reference")


def areas(seed):
    """Attack and shadows -> area, of a student of two teachers that have their labels by heart."""
    federation = overfitted_clients(seed, clients=2, own=OWN, public=PUBLIC)
    key, learner = jax.random.key(seed), regression(ridge=0.1)
    targets = drawn_targets(federation, population=40, seed=seed)
    method = shown(
        pate,
        learner=learner,
        server_learner=learner,
        public=federation.public_examples,
        num_classes=CLASSES,
    )
    before = method.init(key, federation)
    after, _ = method.round(before, federation.cohort(), key)
    views = method.views(before, after, federation.cohort(), key)
    seen = observations([view for view in views if view.message == STUDENT], federation, targets)
    is_in = shadow_memberships(len(targets.example), 2 * OWN, SHADOWS, seed)
    ours, how = (federation, targets, is_in), {"observed": (1,), "key": key}
    own_labels = shadow_answers(lambda: learner, *ours, instructions=on_own_labels(1, 1), **how)
    played = student_answers(
        lambda: learner, lambda: learner, *ours, ensemble=schooling(OWN, OWN), **how
    )
    shadows = {"own_labels": own_labels[1], "played": played[1]}
    found = attacks({1: seen}, targets, federation.y[targets.examples], lambda *_: shadows)
    return {
        (one.attack, one.shadows): each(one, targets.is_member).vulnerability.area.auc
        for one in found
    }


@pytest.mark.slow
def test_shadow_students_find_more():
    """Of no attack less than shadows that learn labels themselves, of all together more; means over seeds."""
    with threadpool_limits(1):
        found = [areas(seed) for seed in range(SEEDS)]
    gained = {
        attack: np.mean([one[attack, "played"] - one[attack, "own_labels"] for one in found])
        for attack in BY_SHADOWS
    }
    assert min(gained.values()) > -0.005, gained
    assert np.mean(list(gained.values())) > 0.015, gained
