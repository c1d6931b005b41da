"""`xclp.presence`: which clients leave at which stage, by a config's value."""

import dataclasses
from functools import cache

import jax
import numpy as np
import pytest
from secure_labels import digits, disagreement

from jaxfed import xclp
from jaxfed.algorithms import ALGORITHMS
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.training.pseudo_labels import propagated_labels

NUM_CLIENTS, NUM_POINTS = 3, 31
PARAMETERS = xclp.Parameters(num_classes=10, num_bits=64, num_neighbors=3, alpha=0.9)
COLUMNS = {"row_sums": "masked", "influence": "columns"}
PROTOCOLS = {"hamming": "masked", **COLUMNS}


@cache
def data():
    return digits(NUM_CLIENTS, NUM_POINTS, labeled=0.5)


@cache
def outcome(name):
    """What is left of the cohort in the clear when client 1 leaves (Section 3.3)."""
    vectors, labels = data()
    if name == "never there":
        vectors, labels = ([own[0], own[2]] for own in (vectors, labels))
    if name == "unlabeled":
        labels = [labels[0], np.full_like(labels[1], -1), labels[2]]
    predictions = xclp.cross_client_label_propagation(vectors, labels, PARAMETERS).predictions
    return predictions if name == "never there" else [predictions[0], predictions[2]]


STAGES = {
    "setup": "never there",
    "hamming": "never there",
    "influence": "unlabeled",
    "row_sums": "unlabeled",
    "sums": "counted",
}


@pytest.mark.parametrize(("stage", "expected"), STAGES.items())
@pytest.mark.sample(4)
def test_every_stage_of_a_config(stage, expected):
    p = dataclasses.replace(PARAMETERS, **PROTOCOLS, presence=(f"1@{stage}",))
    predictions = xclp.cross_client_label_propagation(*data(), p).predictions
    left = predictions.pop(1)
    assert np.all(left.labels == -1)
    assert disagreement(predictions, outcome(expected), NUM_CLIENTS) <= 1


def test_the_outcomes_differ():
    scores = [np.concatenate([own.scores for own in outcome(name)]) for name in STAGES.values()]
    for one, other in ((0, 2), (2, 4), (0, 4)):
        assert np.max(np.abs(scores[one] - scores[other])) > 1e-3


@pytest.fixture
def cohort():
    """Clients 2, 7 and 5 of a federation, and a row of padding."""
    vectors, labels = data()
    x = np.zeros((4, 11, 64), np.float32)
    y = np.full((4, 11), -1, np.int32)
    mask = np.zeros((4, 11), bool)
    for row, (v, own) in enumerate(zip(vectors, labels, strict=True)):
        x[row, : len(v)], y[row, 1 : len(v)], mask[row, : len(v)] = v, own[1:], True
    return Cohort(np.array([2, 7, 5, -1], np.int32), x, y, mask)


@pytest.mark.parametrize(("presence", "gone"), [((), ()), (("7@sums", "0@sums"), (1,))])
def test_clients_go_by_their_numbers_in_training(cohort, presence, gone):
    """In a round of federated training: who leaves has no pseudo-labels, who is not there does not leave."""
    p = dataclasses.replace(PARAMETERS, **COLUMNS, presence=presence)

    def points(state, cohort, key):
        del state, key
        return cohort

    source = propagated_labels.XclpLabels(points, p)
    communication = Communication()
    labels = source(None, cohort, jax.random.key(0), communication)
    weight = np.where(cohort.y < 0, labels.weight, 0).sum(axis=1)
    assert [row for row in range(3) if weight[row] == 0] == list(gone)
    assert communication.upload["hello"] == 3 * 32  # padding is no party


@pytest.mark.parametrize(("presence", "gone"), [((), ()), (("7@sums",), (1,))])
def test_clients_go_by_their_numbers_in_one_shot(cohort, presence, gone):
    cohort = Cohort(*(field[:3] for field in cohort))
    settings = dataclasses.asdict(PARAMETERS) | COLUMNS | {"presence": presence}
    del settings["seed"]
    algorithm = ALGORITHMS["xclp"](**settings)
    federation = type("", (), {"num_clients": 8, "capacity": 11, "server": ()})
    state, _ = algorithm.round(
        algorithm.init(jax.random.key(0), federation), cohort, jax.random.key(0)
    )
    unlabeled = [bool(np.all(state.label[client] == -1)) for client in cohort.client_id]
    assert [row for row in range(3) if unlabeled[row]] == list(gone)
