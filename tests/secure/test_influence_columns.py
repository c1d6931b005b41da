"""Lines 10 to 13 and the counts of labels through a session: as in the clear, counted, and who leaves."""

from functools import cache

import numpy as np
import pytest
from secure_labels import digits, disagreement

from jaxfed import xclp
from jaxfed.secure.session.channel import Presence

NUM_CLIENTS, NUM_POINTS, NUM_CLASSES = 3, 31, 10
PARAMETERS = {"num_classes": NUM_CLASSES, "num_bits": 64, "num_neighbors": 3, "alpha": 0.9}
COLUMNS = {"influence": "columns"}
STATISTICS = {"label_matrix": "class_balanced"}


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
    rows = n + NUM_CLIENTS  # one more a client: the numbers of labels of every class
    assert columns.upload["upload"] == 8 * (NUM_CLIENTS - 1) * rows * NUM_CLASSES


@pytest.mark.parametrize("gone", [0, 2])
@pytest.mark.parametrize(
    "action_and_kind", ["send positions", "receive influence_columns", "send upload"]
)
@pytest.mark.sample(2)
def test_who_leaves(gone, action_and_kind):
    """Before its contribution is in, as if its points were unlabeled, in the counts of labels too."""
    presence = Presence()
    presence.lose_when(gone, *action_and_kind.split())
    protocol = {"row_sums": "masked", **COLUMNS, "presence": presence}
    predictions = xclp.propagate_labels(*data(), **protocol, **PARAMETERS, **STATISTICS)
    assert presence.gone == {gone}
    left = predictions.pop(gone)
    assert np.all(left.labels == -1)
    assert not left.confidences.any()
    expected = list(plain(gone, **STATISTICS))
    del expected[gone]
    assert disagreement(predictions, expected, NUM_CLIENTS) <= 1
