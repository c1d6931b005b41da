"""A client's turn by itself is what a cohort's round makes of it; the server needs its message alone."""

from contextlib import contextmanager
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from replayed_parties import Replayed
from toy_learner import NUM_CLASSES, clients, toy

from jaxfed.algorithms.fedct import fedct
from jaxfed.algorithms.fedct.round import (
    CoTraining,
    FedCTState,
    Sent,
    Turn,
    client_turn,
    packed,
    server_round,
)
from jaxfed.algorithms.fedct.settings import LabelPrivacy, Voting
from jaxfed.learners import LEARNERS
from jaxfed.learners.learner import Taught
from jaxfed.privacy import randomized_response as rr
from jaxfed.training.consensus.client_sums import Attendance

FEDERATION = clients()
U = FEDERATION.public_examples
FIT_KEY, NOISE_KEY = jax.random.split(jax.random.key(0))
LEARNER = {
    "toy": toy,
    "tree": lambda: LEARNERS["decision_tree"](num_classes=NUM_CLASSES),
}


def draw_of(client):
    return rr.from_key(jax.random.fold_in(NOISE_KEY, client))


def settings_of(name="toy", sums="plaintext", **privacy):
    return CoTraining(
        *(LEARNER[name](), U, NUM_CLASSES, 2), Voting(sums=sums), LabelPrivacy(**privacy)
    )


def turn_of(settings, cohort, taught, rows):
    model = settings.learner.init(jax.random.key(1), FEDERATION)
    return client_turn(settings, model, cohort, taught, rows, FIT_KEY, draw_of)


@pytest.mark.parametrize("name", LEARNER)
@pytest.mark.parametrize("sums", ["plaintext", "masked"])
def test_alone_as_in_a_cohort(name, sums):
    settings = settings_of(name, sums, release="xor", epsilon=300.0)
    labels = np.arange(len(U), dtype=np.int32) % NUM_CLASSES
    message = Taught(U, labels, np.ones(len(U), np.float32)), len(U)
    together = turn_of(settings, FEDERATION.cohort(), *message)
    assert together.voters.tolist() == [0, 1, 2, 3]
    for client in range(4):
        alone = turn_of(settings, FEDERATION.cohort([client]), *message)
        assert alone.voters.tolist() == [client]
        ours, theirs = alone.sent[client], together.sent[client]
        assert ours[:2] == theirs[:2]
        np.testing.assert_array_equal(ours.summand, theirs.summand)
        assert (ours.content == b"") == (sums == "masked")


def test_noise_is_on_what_is_sent():
    message = Taught(U, np.full(len(U), -1, np.int32), np.zeros(len(U), np.float32)), 2
    plain, noisy, more = (
        turn_of(settings_of(sums="masked", **privacy), FEDERATION.cohort(), *message)
        for privacy in ({}, *({"release": "xor", "epsilon": eps} for eps in (3.0, 1.0)))
    )
    changed = [
        np.mean([turn.sent[c].summand != plain.sent[c].summand for c in range(4)])
        for turn in (noisy, more)
    ]
    assert 0 < changed[0] < changed[1]


class Elsewhere:
    """Clients that have their marks in other processes; `killed` answers until it has uploaded."""

    def __init__(self, turns, killed):
        self.turns, self.killed = turns, killed

    def turn(self, state, cohort, key):
        sent = dict.fromkeys(range(4), Sent(b"", False, None))
        return Turn((), {"clients": 4}, np.arange(4, dtype=np.int32), sent, 0)

    def attendance(self, voters, key):
        return Attendance(voters, [], key)

    @contextmanager
    def session(self, ids, partners, round_number, attendance):
        def fault(client, number, frames):
            return None if client == self.killed and number > 4 else frames

        own = {j: turn.sent[j].summand.astype(np.int32) for j, turn in enumerate(self.turns)}
        yield Replayed(len(ids), fault, private=own)


@pytest.mark.parametrize("killed", [None, 1])
def test_the_server_counts_votes_of_clients_elsewhere(killed):
    """Each client alone, its votes under masks, and the server's part without any answer: the simulation."""
    settings = settings_of(sums="masked_resilient")
    made = {"learner": toy(), "public": U, "num_classes": NUM_CLASSES, "steps": 2}
    algorithm = fedct(**made, sums="masked_resilient")
    key = jax.random.key(3)
    before = algorithm.init(key, FEDERATION)
    after, told = algorithm.round(before, FEDERATION.cohort(), key)

    fit_key, *_ = jax.random.split(key, 3)
    message = Taught(U, before.label, before.weight), 0
    turns = [
        client_turn(settings, before.learner, FEDERATION.cohort([j]), *message, fit_key, draw_of)
        for j in range(4)
    ]
    far, found = server_round(settings, Elsewhere(turns, killed), before, FEDERATION.cohort(), key)
    for ours, theirs in zip(far[1:], after[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)  # who leaves after its upload has voted
    assert found["left"] == (killed is not None)
    if killed is None:
        assert found["communication"] == told["communication"]


@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
def test_one_client_alone_has_no_sum(sums):
    algorithm = fedct(learner=toy(), public=U, num_classes=NUM_CLASSES, steps=2, sums=sums)
    state = algorithm.init(FIT_KEY, FEDERATION)
    after, told = algorithm.round(state, FEDERATION.cohort([2]), FIT_KEY)
    assert (after.label == -1).all()
    assert not told["communication"]["upload"]


@pytest.mark.parametrize(
    ("release", "unlabeled", "num_bytes"),
    [
        ("none", (0, 0), 4 + 4),  # 13 labels of 4 values
        ("randomized_response", (0, 1), 4 + 5),  # 13 labels of 5 values at the second client
        ("randomized_response", (13, 2), 5 + 5),
        ("xor", (0, 1), 7 + 7),  # 52 bits, whatever they are
    ],
)
def test_bytes_of_votes_with_rows_that_have_no_label(release, unlabeled, num_bytes):
    privacy = LabelPrivacy(release=release)
    marks = [np.eye(4, dtype=bool)[np.arange(13) % 4] for _ in unlabeled]
    for own, number in zip(marks, unlabeled, strict=True):
        own[:number] = False
    sent = {j: Sent(*packed(privacy, own), None) for j, own in enumerate(marks)}
    turn = Turn((), {}, np.arange(2, dtype=np.int32), sent, 1)
    clients = SimpleNamespace(turn=lambda *given: turn, attendance=lambda *given: None)
    settings = CoTraining(toy(), np.zeros((13, 2)), 4, 1, Voting(), privacy)
    nothing = np.full(13, -1, np.int32), np.zeros(13, np.float32), np.zeros(4, np.int32)
    state = FedCTState((), *nothing, np.int32(1), np.int32(0))
    _, told = server_round(settings, clients, state, FEDERATION.cohort([0, 1]), FIT_KEY)
    assert told["communication"]["upload"] == {"votes": num_bytes}


@pytest.mark.parametrize("release", ["xor", "randomized_response"])
def test_clients_of_the_same_labels_have_different_noise(release):
    """With the same noise twice, a difference of two clients' releases would have none."""
    settings = settings_of(release=release, epsilon=1.0)
    first, second = (
        settings.marks(np.zeros(200, np.int32), client, 1, draw_of) for client in (0, 4)
    )
    assert (first != second).any(axis=1).mean() > 0.1
