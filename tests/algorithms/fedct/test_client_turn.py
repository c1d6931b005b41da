"""A client's turn by itself: of its model and a message, what a cohort's round makes of it."""

import jax
import numpy as np
import pytest
from toy_learner import NUM_CLASSES, clients, toy

from jaxfed.algorithms.fedct.client_turn import ClientWork, Message, client_turn, noisy_marks
from jaxfed.algorithms.fedct.label_privacy import LabelPrivacy
from jaxfed.learners import LEARNERS

FEDERATION = clients()
U = FEDERATION.public_examples
KEYS = jax.random.split(jax.random.key(0))
LEARNER = {
    "toy": toy,
    "tree": lambda: LEARNERS["decision_tree"](num_classes=NUM_CLASSES),
}


def work_of(name, **privacy):
    return ClientWork(LEARNER[name](), "predict", U, NUM_CLASSES, 2, LabelPrivacy(**privacy))


@pytest.mark.parametrize("name", LEARNER)
def test_alone_as_in_a_cohort(name):
    work = work_of(name, release="xor", epsilon=300.0)
    model = work.learner.init(jax.random.key(1), FEDERATION)
    labels = np.arange(len(U), dtype=np.int32) % NUM_CLASSES
    message = Message(labels, np.ones(len(U), np.float32), rows=len(U))
    together = client_turn(work, model, FEDERATION.cohort(), message, *KEYS)
    assert together.voters.tolist() == [0, 1, 2, 3]
    for client in range(4):
        alone = client_turn(work, model, FEDERATION.cohort([client]), message, *KEYS)
        assert alone.voters.tolist() == [client]
        np.testing.assert_array_equal(alone.answers[0], together.answers[client])
        np.testing.assert_array_equal(alone.marks[0], together.marks[client])


def test_noise_is_on_what_is_sent_and_waits_for_its_r():
    work = work_of("toy", release="xor", epsilon=3.0)
    model = work.learner.init(jax.random.key(1), FEDERATION)
    unknown = Message(np.full(len(U), -1, np.int32), np.zeros(len(U), np.float32))
    turn = client_turn(work, model, FEDERATION.cohort(), unknown, *KEYS)
    assert turn.marks is None
    later = noisy_marks(work, turn.answers, turn.voters, 2, KEYS[1])
    known = client_turn(work, model, FEDERATION.cohort(), unknown._replace(rows=2), *KEYS)
    np.testing.assert_array_equal(known.marks, later)
    assert not np.array_equal(known.marks, turn.answers[..., None] == np.arange(NUM_CLASSES))
