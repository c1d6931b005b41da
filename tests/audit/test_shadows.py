"""Shadow models: who is trained on what, and that training them together changes nothing."""

import jax
import numpy as np
import pytest
from small_training import federation_of, training_of

from jaxfed.audit.observations import drawn_targets
from jaxfed.audit.shadows import (
    shadow_answers,
    shadow_federation,
    shadow_memberships,
)
from jaxfed.learners import LEARNERS, network
from jaxfed.training.local.batches import Batches

FEDERATION = federation_of([12, 12])
TARGETS = drawn_targets(FEDERATION, members=6, population=5, seed=0)
KEY = jax.random.key(3)


def test_half_of_the_models_have_seen_an_example():
    is_in = shadow_memberships(40, 20, 8, seed=1)
    assert is_in.sum(axis=1).tolist() == [20] * 8
    assert is_in.sum(axis=0).tolist() == [4] * 40
    assert (is_in[0] == ~is_in[1]).all()
    assert (is_in[0] != is_in[2]).any()


@pytest.mark.slow
def test_together_is_one_by_one_to_the_bit():
    learner = network(training=training_of(Batches("joint", 4, 1)))
    is_in = shadow_memberships(len(TARGETS.example), 6, 4, seed=0)
    together = shadow_answers(
        learner,
        FEDERATION,
        TARGETS,
        is_in,
        rounds=2,
        steps=3,
        observed=(1, 2),
        key=KEY,
    )
    shadow = shadow_federation(FEDERATION, TARGETS, is_in)
    state = learner.init(jax.random.fold_in(KEY, 0), shadow)
    for number in (1, 2):
        for one in range(4):
            key = jax.random.fold_in(KEY, number)
            state = learner.fit(state, shadow.cohort([one]), None, key, 3).state
        alone = learner.predict_proba(state, np.arange(4), FEDERATION.x[TARGETS.examples])
        np.testing.assert_array_equal(together[number].answers, alone)
    np.testing.assert_array_equal(together[2].is_in, is_in)


def test_estimators_are_shadows_too():
    learner, fits = LEARNERS["decision_tree"](num_classes=3), []
    counted = learner._replace(fit=lambda *given: fits.append(1) or learner.fit(*given))
    is_in = shadow_memberships(len(TARGETS.example), 12, 4, seed=0)
    said = shadow_answers(
        counted,
        FEDERATION,
        TARGETS,
        is_in,
        rounds=2,
        steps=1,
        observed=(2,),
        key=KEY,
    )
    label = FEDERATION.y[TARGETS.example]
    right = said[2].answers[:, : len(label)].argmax(axis=-1) == label
    assert right[is_in].all()
    assert right[~is_in].mean() < 0.9
    assert len(fits) == 1  # each is from scratch: the first round's would be for nothing
