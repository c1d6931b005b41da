"""FedCT's votes under masks: of clients that leave, and among a few neighbors of each client."""

from types import SimpleNamespace

import numpy as np
import pytest
import toy_learner
from toy_learner import NUM_CLASSES, clients, nearest, toy

from jaxfed.algorithms.fedct import fedct
from jaxfed.data import Partition
from jaxfed.errors import ProtocolError
from jaxfed.federation.clients import Federation
from jaxfed.secure import vote_sums
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session.neighborhoods import PROMISE

FEDERATION = clients()


def round_of(federation=FEDERATION, cohort=None, **settings):
    public = federation.public_examples
    algorithm = fedct(learner=toy(), public=public, num_classes=NUM_CLASSES, steps=2, **settings)
    (_, state), (told,) = toy_learner.rounds_of(algorithm, federation, 1, [cohort])
    return state, told


def of_votes(state, who, federation=FEDERATION):
    """The majority, by the definition, of these clients' models."""
    u = federation.public_examples
    votes = np.stack([nearest(state.learner.center[client], u) for client in who])
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


@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
@pytest.mark.parametrize("stage", ["upload", "setup"])
def test_of_less_than_two_there_is_no_sum(stage, sums, caplog):
    presence = tuple(f"{client}@{stage}" for client in range(3))
    state, told = round_of(sums=sums, presence=presence)
    assert (state.label == -1).all()
    assert told["voters"] == 0
    assert told["left"] >= 3
    assert not state.turns.any()
    assert "consensus" not in told["communication"]["download"]
    [line] = [each.getMessage() for each in caplog.records]
    assert line.startswith("fedct: no consensus in round 1: 0 of 4 clients that answer stay in")


def test_noise_is_of_those_in_the_sum():
    """As of a plaintext round in which the others alone take part."""
    noise = {"release": "xor", "epsilon": 300.0}
    ours, told = round_of(sums="masked", presence=("1@upload",), **noise)
    plain, expected = round_of(cohort=[0, 2, 3], **noise)
    np.testing.assert_array_equal(ours.label, plain.label)
    np.testing.assert_array_equal(ours.turns, plain.turns)
    assert told["epsilon"] == expected["epsilon"]
    assert told["agreement"] == pytest.approx(expected["agreement"])  # shares of their estimates


def test_who_is_not_there_does_not_leave():
    _, told = round_of(cohort=[0, 1, 2], sums="masked", presence=("3@upload",))
    assert (told["left"], told["voters"]) == (0, 3)


def twenty():
    """Twenty clients with four noisy examples each, and forty public ones."""
    rng = np.random.default_rng(0)
    total = 4 * 20 + 60
    y = rng.integers(NUM_CLASSES, size=total).astype(np.int32)
    x = (np.eye(NUM_CLASSES)[y] + rng.standard_normal((total, NUM_CLASSES))).astype(np.float32)
    *own, public, test, validation = np.split(np.arange(total), [*range(4, 81, 4), 120, 130])
    nothing = tuple(part[:0] for part in own)
    partition = Partition(tuple(own), nothing, nothing)
    return Federation(x, y, partition, NUM_CLASSES, validation=validation, test=test, public=public)


@pytest.mark.parametrize("presence", [(), ("3@upload", "5@survivors", "7@setup")])
def test_sums_among_neighbors_are_of_those_in_them(presence):
    federation, sparse = twenty(), {"sums": "masked_resilient", "mask_partners": 8}
    state, told = round_of(federation, **sparse, presence=presence)
    stay = [j for j in range(20) if not presence or j not in (3, 7)]
    np.testing.assert_array_equal(state.label, of_votes(state, stay, federation))
    assert told["voters"] == len(stay)
    assert told["communication"]["download"]["partners"] > 0


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ({"promise": [0.0, 0.3, 40, 30]}, "another promise"),
        ({"is_resilient": False}, "another promise"),
        ({"clients": 2}, "fewer clients than the session's"),
        ({"clients": True}, "fewer clients than the session's"),
    ],
)
def test_a_client_refuses_another_promise(plan, line):
    """Of a server on a network: fewer colluders, single masks, or a count that others do not have."""
    marks = np.zeros((4, 3), np.int32)
    roles = server_sums.roles("votes", vote_sums.client, marks, is_resilient=True)
    made = roles["votes among neighbors"].constructor
    end = SimpleNamespace(address=0, clients=[0, 1, 2])
    right = {"clients": 20, "is_resilient": True, "promise": list(PROMISE), "random_bytes": bytes}
    made(end, marks, **right)
    with pytest.raises(ProtocolError, match=line):
        made(end, marks, **right | plan)
