"""A client's turn by itself: of its model and a message, what a cohort's round makes of it."""

import jax
import numpy as np
import pytest
from replayed_parties import Replayed
from toy_learner import NUM_CLASSES, clients, toy

from jaxfed.algorithms.fedct import fedct
from jaxfed.algorithms.fedct.client_turn import ClientWork, Message, client_turn, noisy_marks
from jaxfed.algorithms.fedct.label_privacy import LabelPrivacy
from jaxfed.algorithms.fedct.server_turn import Election, Sent
from jaxfed.federation.communication import Communication
from jaxfed.learners import LEARNERS
from jaxfed.secure.vote_sums import vote_histogram
from jaxfed.training.consensus.client_sums import ClientSums
from jaxfed.training.consensus.consensus import CONSENSUS
from jaxfed.training.consensus.dropout import Attendance
from jaxfed.training.consensus.opened_tally import own_tally

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


class OverNetwork(ClientSums):
    """Sums over a network of clients that have their tallies; `killed` answers until it has uploaded."""

    def __init__(self, voters, tallies, killed):
        attendance = Attendance(voters, [], jax.random.key(0))
        super().__init__("masked_resilient", Communication(), attendance)
        self.tallies, self.killed = tallies, killed

    def total(self, num_clients, shape, own, *, are_marks):
        del own, are_marks

        def fault(client, number, frames):
            return None if client == self.killed and number > 4 else frames

        session = Replayed(num_clients, fault, private=self.tallies)
        found = vote_histogram(
            session, dict.fromkeys(range(num_clients)), shape=shape, is_resilient=True
        )
        self.attendance.note(session.contributors, sorted(session.presence.gone))
        self.communication.add(session.communication())
        return found


@pytest.mark.parametrize("killed", [None, 1])
def test_the_server_counts_votes_of_clients_elsewhere(killed):
    """Each client alone, its votes under masks, and the server's part without any answer: the simulation."""
    settings = {"learner": toy(), "public": U, "num_classes": NUM_CLASSES, "steps": 2}
    algorithm = fedct(**settings, sums="masked_resilient")
    key = jax.random.key(3)
    before = algorithm.init(key, FEDERATION)
    after, told = algorithm.round(before, FEDERATION.cohort(), key)

    fit_key, noise_key, _ = jax.random.split(key, 3)
    work, consensus = work_of("toy"), CONSENSUS["majority"](NUM_CLASSES)
    message = Message(before.label, before.weight)
    turns = [
        client_turn(work, before.learner, FEDERATION.cohort([j]), message, fit_key, noise_key)
        for j in range(4)
    ]
    tallies = {j: own_tally(consensus, turn.answers[0]) for j, turn in enumerate(turns)}
    voters = np.arange(4, dtype=np.int32)
    sums = OverNetwork(voters, tallies, killed)
    sent = Sent(np.full((4, len(U)), -1, np.int32), voters, None)
    vote = Election(consensus, NUM_CLASSES, work.privacy).vote(message, sent, sums, 1)
    np.testing.assert_array_equal(vote.label, after.label)
    np.testing.assert_array_equal(vote.voters, voters)  # who leaves after its upload has voted
    assert vote.metrics["left"] == (killed is not None)
    if killed is None:
        assert sums.communication.metrics() == told["communication"]
