"""Lines 10 to 13 and the authors' statistics through a session: as in the clear, counted, and who leaves."""

from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest
from recording_network import Network
from scipy import stats
from secure_labels import digits, disagreement
from threat_model import table

from jaxfed import xclp
from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.influence import transfer
from jaxfed.secure.primitives.blocks import ranges
from jaxfed.secure.primitives.correlation_hash import CorrelationHash
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session

NUM_CLIENTS, NUM_POINTS, NUM_CLASSES = 3, 31, 10
PARAMETERS = {"num_classes": NUM_CLASSES, "num_bits": 64, "num_neighbors": 3, "alpha": 0.9}
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
    ({"row_sums": "masked"}, {}),
    ({"row_sums": "masked"}, STATISTICS),
    ({"hamming": "masked", "row_sums": "masked_resilient"}, STATISTICS),
    ({"hamming": "masked"}, STATISTICS),
]


@pytest.mark.parametrize("influence", ["labels", "columns"])
@pytest.mark.parametrize(("protocols", "switches"), SWITCHES, ids=str)
@pytest.mark.sample(1)
def test_labels_are_those_in_the_clear(protocols, switches, influence):
    secure = xclp.propagate_labels(
        *data(), influence=influence, **PARAMETERS, **protocols, **switches
    )
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
    transfers = result_of(row_sums="masked", influence="labels")
    assert "influence_columns" not in transfers.download
    expected = [transfer.message_bytes(count, n, NUM_CLASSES) for count in counts]
    for kind, sent in {
        "label_request": transfers.download,
        "label_response": transfers.upload,
        "label_choices": transfers.upload,
        "label_payload": transfers.download,
    }.items():
        assert sent[kind] == sum(own[kind] for own in expected)


MOMENTS = [  # influence, action, kind, how many before, whether the client's labels count
    ("columns", "send", "positions", 0, False),
    ("columns", "receive", "influence_columns", 0, False),
    ("labels", "send", "positions", 0, False),
    ("labels", "receive", "label_request", 0, False),
    ("labels", "send", "label_response", 0, False),
    ("labels", "send", "label_choices", 0, False),
    ("labels", "receive", "label_payload", 0, False),
    ("labels", "send", "upload", 0, False),
    ("columns", "send", "confidence", 0, True),
    ("columns", "receive", "largest_confidence", 0, True),
]


@pytest.mark.parametrize(
    ("gone", "influence", "action", "kind", "after", "counts"),
    [
        pytest.param(gone, *moment, marks=pytest.mark.slow if (number + gone) % 4 in (1, 2) else ())
        for number, moment in enumerate(MOMENTS)
        for gone in (0, 2)
    ],
)
def test_who_leaves(gone, influence, action, kind, after, counts):
    """Before its contribution is in, as if its points were unlabeled, in the statistics too."""
    presence = Presence()
    presence.lose_when(gone, action, kind, after=after)
    predictions = xclp.propagate_labels(
        *data(),
        row_sums="masked",
        influence=influence,
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


# --- shares --------------------------------------------------------------------------------------


def shares(num_points, num_labels, num_classes, classes, s, network=None):
    """T and -R of one client, whose labels are `classes`, in blocks of 5 labels."""
    network = network or Network()
    one_hot = np.eye(num_classes)[classes]
    client = transfer.Client(network.endpoint(0), one_hot, num_points)
    server = transfer.Server(network.endpoint(SERVER), 0, num_points, num_classes)
    server.request()
    client.respond()
    server.finish_setup()
    for block in ranges(num_labels, 5):
        client.choose(len(block))
        server.extend(s[:, block.start : block.stop])
        for points in ranges(num_points, 4):
            server.transfer(points)
            client.accumulate(points)
    return client.finished(), server.finished()


@pytest.mark.parametrize("num_classes", [1, 2, 4])
@pytest.mark.parametrize(("num_points", "num_labels"), [(7, 3), (1, 1), (8, 11)])
def test_shares_put_together_are_the_product(num_points, num_labels, num_classes):
    rng = np.random.default_rng(0)
    s = rng.integers(0, 2**64, (num_points, num_labels), dtype=np.uint64)
    classes = rng.integers(num_classes, size=num_labels)
    ours, theirs = shares(num_points, num_labels, num_classes, classes, s)
    product = np.zeros((num_points, num_classes), np.uint64)
    for label, c in enumerate(classes):
        product[:, c] += s[:, label]
    np.testing.assert_array_equal(ours + theirs, product)


def test_each_share_alone_and_all_messages_are_uniform():
    """Whatever is chosen and whatever the columns are: here constants, and one class for all."""
    network = Network()
    n, m = 64, 10
    ours, theirs = shares(n, m, 4, np.zeros(m, int), np.full((n, m), 7, np.uint64), network)
    sent = {"T": ours[:, :-1], "R": theirs[:, :-1]}
    for kind in ("label_choices", "label_payload"):
        bodies = [message.payload for message in network.log if message.kind == kind]
        sent[kind] = np.frombuffer(b"".join(bodies), np.uint8)
    for name, values in sent.items():
        counts = np.bincount(
            np.ascontiguousarray(values).view(np.uint8).reshape(-1) >> 4, minlength=16
        )
        assert stats.chisquare(counts).pvalue > 1e-6, name


def test_other_labels_look_the_same_to_the_server():
    """The same tape but for the client's base keys: u differs, as pads do, in half of its bits."""
    tapes = []
    for c in (0, 2):
        network = Network()
        shares(4, 5, 4, np.full(5, c), np.ones((4, 5), np.uint64), network)
        tapes.append(
            b"".join(m.payload for m in network.seen_by(SERVER) if m.kind == "label_choices")
        )
    bits = np.unpackbits(np.frombuffer(tapes[0], np.uint8) ^ np.frombuffer(tapes[1], np.uint8))
    assert stats.binomtest(int(bits.sum()), bits.size, 0.5).pvalue > 1e-6


def test_nothing_that_is_sent_comes_twice():
    """The same labels and columns in two runs: whose keys, contexts or pads came again would be compared."""
    sent = []
    for _ in range(2):
        network = Network()
        shares(8, 7, 4, np.zeros(7, int), np.ones((8, 7), np.uint64), network)
        for message in network.log:
            sent += [message.payload[at : at + 32] for at in range(0, len(message.payload), 32)]
    assert len(set(sent)) == len(sent)


def test_no_pad_has_the_tweak_of_another(monkeypatch):
    """Each row and block of the hash comes once at the client and, q and q xor s, twice at the server."""
    tweaks = Counter()

    class Counting(CorrelationHash):
        def __call__(self, rows, first_row, first_block, num_blocks):
            numbers = range(first_row, first_row + len(rows))
            tweaks.update(product(numbers, range(first_block, first_block + num_blocks)))
            return super().__call__(rows, first_row, first_block, num_blocks)

    monkeypatch.setattr(transfer, "CorrelationHash", Counting)
    shares(8, 7, 4, np.zeros(7, int), np.ones((8, 7), np.uint64))
    assert set(tweaks.values()) == {3}


@pytest.mark.parametrize(
    "blocks",
    [[[2.0**22]], [[2.0**21, -(2.0**21), 2.0**21]], [[2.0**21, 0], [2.0**21]]],
    ids=["one label", "labels that cancel", "blocks together"],
)
def test_contributions_that_might_wrap_are_refused(blocks):
    session = Session(2)
    labels = np.eye(4)[np.zeros(sum(map(len, blocks)), int)]
    way = transfer.Transferred(session, 0, labels, 3)
    way.positions()
    *before, last = [np.tile(row, (3, 1)) for row in blocks]
    for columns in before:
        way.multiply(columns, np.arange(columns.shape[1]))
    with pytest.raises(UsageError, match="limit with 2 clients"):
        way.multiply(last, np.arange(last.shape[1]))


# --- lies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["label_request", "label_response", "label_choices", "label_payload"]
)
def test_transfers_of_another_length_are_refused(kind):
    network = Network()
    network.tamper = lambda message: (
        message.payload[:-1] if message.kind == kind else message.payload
    )
    with pytest.raises(ProtocolError):
        shares(2, 2, 3, np.zeros(2, int), np.ones((2, 2), np.uint64), network)


@pytest.mark.parametrize("row", table("influence"), ids=lambda row: row[0])
def test_bytes_of_the_threat_model(row):
    """Five clients of 500 points with 50 labels each, C = 10."""
    kind, _, _, num_bytes = row
    p, n, m = 5, 2500, 50
    own = transfer.message_bytes(m, n, 10)
    sent = own | {"positions": 4 * m, "influence_columns": 4 * n * m}
    assert int(num_bytes) == p * sent[kind]
