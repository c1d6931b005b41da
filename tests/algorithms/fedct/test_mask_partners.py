"""FedCT whose votes are summed among a few neighbors of each client."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from toy_learner import NUM_CLASSES, nearest, toy

from jaxfed.algorithms.fedct import fedct
from jaxfed.data import Partition
from jaxfed.errors import ProtocolError, UsageError
from jaxfed.federation.clients import Federation
from jaxfed.secure import vote_sums
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session.neighborhoods import PROMISE

KEY = jax.random.key(0)
NUMBER, PARTNERS = 20, 8
SPARSE = {"sums": "masked_resilient", "mask_partners": PARTNERS}


def federation():
    """Twenty clients with four noisy examples each, and forty public ones."""
    rng = np.random.default_rng(0)
    total = 4 * NUMBER + 60
    y = rng.integers(NUM_CLASSES, size=total).astype(np.int32)
    x = (np.eye(NUM_CLASSES)[y] + rng.standard_normal((total, NUM_CLASSES))).astype(np.float32)
    *own, public, test, validation = np.split(np.arange(total), [*range(4, 81, 4), 120, 130])
    nothing = tuple(part[:0] for part in own)
    partition = Partition(tuple(own), nothing, nothing)
    return Federation(x, y, partition, NUM_CLASSES, validation=validation, test=test, public=public)


FEDERATION = federation()
U = FEDERATION.public_examples


def round_of(**settings):
    algorithm = fedct(learner=toy(), public=U, num_classes=NUM_CLASSES, steps=2, **settings)
    state = algorithm.init(KEY, FEDERATION)
    return algorithm.round(state, FEDERATION.cohort(None), KEY)


@pytest.mark.parametrize("presence", [(), ("3@upload", "5@survivors", "7@setup")])
def test_consensus_of_those_in_the_sum(presence):
    state, told = round_of(**SPARSE, presence=presence)
    stay = [j for j in range(NUMBER) if not presence or j not in (3, 7)]
    votes = np.stack([nearest(state.learner.center[j], U) for j in stay])
    counts = np.stack([np.bincount(u, minlength=NUM_CLASSES) for u in votes.T])
    np.testing.assert_array_equal(state.label, counts.argmax(axis=1))
    assert told["voters"] == len(stay)
    assert told["communication"]["download"]["partners"] > 0


def test_same_labels_as_among_all():
    sparse, told = round_of(**SPARSE)
    among_all, more = round_of(sums="masked_resilient")
    np.testing.assert_array_equal(sparse.label, among_all.label)
    assert (
        2 * told["communication"]["upload"]["secrets"] < more["communication"]["upload"]["secrets"]
    )
    assert told["communication"]["upload"]["secrets"] == NUMBER * PARTNERS * 132


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
    end, right = (
        SimpleNamespace(address=0, clients=[0, 1, 2]),
        {
            "clients": 20,
            "is_resilient": True,
            "promise": list(PROMISE),
        },
    )
    options = {"random_bytes": bytes, **right}
    made(end, np.zeros((4, 3), np.int32), **options)
    with pytest.raises(ProtocolError, match=line):
        made(end, np.zeros((4, 3), np.int32), **options | plan)


def test_too_few_partners_are_refused():
    with pytest.raises(UsageError, match=r"^fedct.mask_partners=4: too few, or odd, .*; use 8"):
        round_of(**{**SPARSE, "mask_partners": 4})
