"""Clients of FedCT that leave in a masked sum: the consensus is of those whose votes are in it."""

import jax
import numpy as np
import pytest
from toy_learner import NUM_CLASSES, clients, nearest, toy

from jaxfed.algorithms.fedct import fedct
from jaxfed.testing.method_checks import assert_equal

FEDERATION = clients()
U = FEDERATION.public_examples
KEY = jax.random.key(0)


def round_of(federation=FEDERATION, cohort=None, **settings):
    algorithm = fedct(learner=toy(), public=U, num_classes=NUM_CLASSES, steps=2, **settings)
    state = algorithm.init(KEY, federation)
    return algorithm.round(state, federation.cohort(cohort), KEY)


def of_votes(state, who):
    """The majority, by the definition, of these clients' models."""
    votes = np.stack([nearest(state.learner.center[client], U) for client in who])
    return np.stack([np.bincount(u, minlength=NUM_CLASSES) for u in votes.T]).argmax(axis=1)


CASES = [  # sums, who leaves, whose votes are in the sum
    *((sums, ("1@setup",), [0, 2, 3]) for sums in ("masked", "masked_resilient")),
    *((sums, ("1@upload",), [0, 2, 3]) for sums in ("masked", "masked_resilient")),
    *((sums, ("1@sums", "0@upload"), [1, 2, 3]) for sums in ("masked", "masked_resilient")),
    ("masked_resilient", ("1@survivors",), [0, 1, 2, 3]),
    ("masked_resilient", ("1@survivors", "2@survivors"), [0, 3]),  # too few to unmask four
]


@pytest.mark.parametrize(("sums", "presence", "stayed"), CASES)
def test_the_consensus_is_of_those_in_the_sum(sums, presence, stayed):
    state, told = round_of(sums=sums, presence=presence)
    np.testing.assert_array_equal(state.label, of_votes(state, stayed))
    assert told["voters"] == len(stayed)
    assert told["left"] == len(presence)
    np.testing.assert_array_equal(np.flatnonzero(state.turns), stayed)
    assert told["failed_clients"] == 0
    assert told["clients"] == 4  # all have learned


def test_the_outcomes_are_not_the_same():
    state, _ = round_of()
    some = ([0, 1, 2, 3], [0, 2, 3], [1, 2, 3], [0, 3])
    assert len({tuple(of_votes(state, who)) for who in some}) == 4


@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
@pytest.mark.parametrize(
    "presence", [("0@upload", "1@upload", "2@upload"), ("100%@upload",), ("100%@setup",)]
)
def test_of_less_than_two_there_is_no_sum(presence, sums, caplog):
    state, told = round_of(sums=sums, presence=presence)
    assert (state.label == -1).all()
    assert told["voters"] == 0
    assert told["left"] >= 3
    assert not state.turns.any()
    assert "consensus" not in told["communication"]["download"]
    [line] = [each.getMessage() for each in caplog.records]
    assert line.startswith("fedct: no consensus in round 1: 0 of 4 clients that answer stay in")


def test_one_that_leaves_too_late_is_told_the_consensus(caplog):
    _, told = round_of(sums="masked", presence=("1@sums",))
    _, stayed = round_of(sums="masked")
    assert told["communication"]["download"]["consensus"] > 0
    assert (
        told["communication"]["download"]["consensus"]
        == (stayed["communication"]["download"]["consensus"])
    )
    assert not caplog.records


def test_noise_is_of_those_in_the_sum():
    """As of a plaintext round in which the others alone take part."""
    noise = {"release": "xor", "epsilon": 300.0}
    ours, told = round_of(sums="masked", presence=("1@upload",), **noise)
    plain, expected = round_of(cohort=[0, 2, 3], **noise)
    np.testing.assert_array_equal(ours.label, plain.label)
    np.testing.assert_array_equal(ours.turns, plain.turns)
    assert told["epsilon"] == expected["epsilon"]
    assert told["agreement"] == pytest.approx(expected["agreement"])  # shares of their estimates


def test_shares_are_drawn_from_the_key_and_who_is_not_there_does_not_leave():
    settings = {"sums": "masked", "presence": ("50%@upload",)}
    ours, told = round_of(**settings)
    assert told["left"] == 2
    assert_equal(ours, round_of(**settings)[0])
    _, told = round_of(cohort=[0, 1, 2], sums="masked", presence=("3@upload",))
    assert (told["left"], told["voters"]) == (0, 3)
