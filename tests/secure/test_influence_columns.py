"""Lines 10 to 13 and the authors' statistics through a session: as in the clear, counted, and who leaves."""

from functools import cache

import numpy as np
import pytest
from secure_labels import digits, disagreement
from threat_model import table

from jaxfed import xclp
from jaxfed.secure.session.channel import Presence

NUM_CLIENTS, NUM_POINTS, NUM_CLASSES = 3, 31, 10
PARAMETERS = {"num_classes": NUM_CLASSES, "num_bits": 64, "num_neighbors": 3, "alpha": 0.9}
COLUMNS = {"influence": "columns"}
STATISTICS = {"label_matrix": "class_balanced", "relative_confidence": True}


@cache
def data():
    return digits(NUM_CLIENTS, NUM_POINTS, labeled=0.5)


@cache
def plain(gone=None, **switches):
    """Labels in the clear, of everybody or as if all points of `gone` had been unlabeled."""
    vectors, labels = data()
    labels = [np.full_like(y, -1) if j == gone else y for j, y in enumerate(labels)]
    return xclp.propagate_labels(vectors, labels, **PARAMETERS, **switches)


SWITCHES = [  # of the protocol, of the labeling
    ({"row_sums": "masked", **COLUMNS}, {}),
    ({"row_sums": "masked", **COLUMNS}, STATISTICS),
    ({"hamming": "masked", "row_sums": "masked_resilient", **COLUMNS}, STATISTICS),
    ({"hamming": "masked", **COLUMNS}, STATISTICS),
    ({"hamming": "masked"}, STATISTICS),
]


@pytest.mark.parametrize(("protocols", "switches"), SWITCHES, ids=str)
@pytest.mark.sample(1)
def test_labels_are_those_in_the_clear(protocols, switches):
    secure = xclp.propagate_labels(*data(), **PARAMETERS, **protocols, **switches)
    assert disagreement(secure, plain(**switches), NUM_CLIENTS) <= 1


def result_of(**parameters):
    return xclp.cross_client_label_propagation(
        *data(), xclp.Parameters(**PARAMETERS, **{**STATISTICS, **parameters})
    ).communication


def test_all_that_parties_tell_each_other_is_counted():
    """By what goes through the channel: no label, column or statistic beside it."""
    _, labels = data()
    counts = [int(np.sum(y >= 0)) for y in labels]
    n, m = NUM_POINTS, sum(counts)
    columns = result_of(row_sums="masked", influence="columns")
    assert columns.upload["positions"] == 4 * m
    assert columns.download["influence_columns"] == 4 * n * m
    assert columns.upload["confidence"] == columns.download["largest_confidence"] == 4 * NUM_CLIENTS
    rows = n + NUM_CLIENTS  # one more a client: the numbers of labels of every class
    assert columns.upload["upload"] == 8 * (NUM_CLIENTS - 1) * rows * NUM_CLASSES


MOMENTS = [  # action, kind, whether the client's labels count
    ("send", "positions", False),
    ("receive", "influence_columns", False),
    ("send", "upload", False),
    ("send", "confidence", True),
    ("receive", "largest_confidence", True),
]


@pytest.mark.parametrize(
    ("gone", "action", "kind", "counts"),
    [
        pytest.param(gone, *moment, marks=pytest.mark.slow if (number + gone) % 4 in (1, 2) else ())
        for number, moment in enumerate(MOMENTS)
        for gone in (0, 2)
    ],
)
def test_who_leaves(gone, action, kind, counts):
    """Before its contribution is in, as if its points were unlabeled, in the statistics too."""
    presence = Presence()
    presence.lose_when(gone, action, kind)
    predictions = xclp.propagate_labels(
        *data(),
        row_sums="masked",
        influence="columns",
        presence=presence,
        **PARAMETERS,
        **STATISTICS,
    )
    assert presence.gone == {gone}
    left = predictions.pop(gone)
    assert np.all(left.labels == -1)
    assert not left.confidences.any()
    # Divided by the largest confidence among those who took part in the comparison.
    expected = list(plain(None if counts else gone, label_matrix="class_balanced"))
    compared = expected if kind == "largest_confidence" else expected[:gone] + expected[gone + 1 :]
    largest = max(own.confidences.max() for own in compared)
    del expected[gone]
    expected = [own._replace(confidences=own.confidences / largest) for own in expected]
    assert disagreement(predictions, expected, NUM_CLIENTS) <= 1


def test_everybody_leaves_with_columns_in_the_clear_beyond():
    presence = Presence()
    for client in range(NUM_CLIENTS):
        presence.lose_when(client, "send", "positions")
    predictions = xclp.propagate_labels(
        *data(), hamming="masked", influence="columns", presence=presence, **PARAMETERS
    )
    assert all(np.all(own.labels == -1) for own in predictions)


@pytest.mark.parametrize("row", table("influence"), ids=lambda row: row[0])
def test_bytes_of_the_threat_model(row):
    """Five clients of 500 points with 50 labels each, C = 10."""
    kind, _, num_bytes = row
    p, n, m = 5, 2500, 50
    assert int(num_bytes) == p * {"positions": 4 * m, "influence_columns": 4 * n * m}[kind]
