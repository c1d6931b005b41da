"""Clients that leave a run of Algorithm 1, message by message, against what Section 3.3 says comes out."""

from functools import cache
from itertools import count

import message_sizes
import numpy as np
import pytest
from secure_labels import digits, disagreement

from jaxfed import xclp
from jaxfed.kernels import knn
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import protocols
from jaxfed.secure.primitives import paillier
from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.parties import Session
from jaxfed.xclp.settings.parameters import HAMMING

# Labels have transfers with dropouts of their own: influence/test_transfer.
PARAMETERS = {"num_classes": 10, "num_bits": 64, "num_neighbors": 3, "alpha": 0.9} | {
    "influence": "columns"
}
NUM_CLIENTS, NUM_POINTS = 3, 30


@cache
def data():
    return digits(NUM_CLIENTS, NUM_POINTS, labeled=0.5)


def never_there(gone):
    """Before or during SecureHamming: labels of a cohort without the client."""
    vectors, labels = data()
    others = [j for j in range(NUM_CLIENTS) if j != gone]
    return xclp.propagate_labels(
        [vectors[j] for j in others], [labels[j] for j in others], **PARAMETERS
    )


def unlabeled(gone):
    """Before or inside SecureRowSums: labels as if all its points had been unlabeled."""
    vectors, labels = data()
    labels = [np.full_like(y, -1) if j == gone else y for j, y in enumerate(labels)]
    plain = xclp.propagate_labels(vectors, labels, **PARAMETERS)
    return [prediction for j, prediction in enumerate(plain) if j != gone]


def counted(gone):
    """After SecureRowSums: nobody else notices."""
    plain = xclp.propagate_labels(*data(), **PARAMETERS)
    return [prediction for j, prediction in enumerate(plain) if j != gone]


@cache
def expected(outcome, gone):
    return outcome(gone)


def moments():
    """(hamming, row_sums, who leaves, before what, outcome)."""
    in_setup = [("receive", "invite"), ("send", "hello"), ("receive", "roster"), ("send", "group")]
    for gone in range(NUM_CLIENTS):
        in_masked = [("send", "own"), ("send", "points"), ("send", "shares"), ("send", "shares", 1)]
        before = in_setup[: 4 if gone == 0 else 3]  # client 0 gives the group secret
        for moment in [*before, *in_masked]:
            yield "masked", "masked", gone, moment, never_there
    # Client 1 is second in its pair with client 0, first in that with client 2.
    for moment in [
        ("receive", "request"),
        ("send", "response"),
        ("send", "correction"),
        ("receive", "payload"),
        ("send", "second_sums"),
        ("send", "request"),
        ("receive", "response"),
        ("receive", "correction"),
        ("send", "payload"),
        ("send", "first_sums"),
    ]:
        yield "ot", "masked", 1, moment, never_there
    for gone in range(NUM_CLIENTS):
        yield "masked", "masked", gone, ("receive", "start"), unlabeled
        yield "masked", "masked", gone, ("send", "upload"), unlabeled
        yield "masked", "masked", gone, ("receive", "sums"), counted
    for moment, outcome in [
        (("receive", "start"), unlabeled),
        (("send", "mask_key"), unlabeled),
        (("receive", "mask_keys"), unlabeled),
        (("send", "secrets"), unlabeled),
        (("send", "secrets", 1), unlabeled),
        (("receive", "secrets", 1), unlabeled),
        (("send", "upload"), unlabeled),
        (("receive", "survivors"), counted),
        (("send", "shares"), counted),
        (("receive", "sums"), counted),
    ]:
        yield "ot", "masked_resilient", 1, moment, outcome
    yield "plaintext", "masked", 1, ("send", "hello"), unlabeled


@pytest.mark.parametrize(
    ("hamming", "row_sums", "gone", "moment", "outcome"),
    list(moments()),
    ids=lambda part: getattr(part, "__name__", str(part)).replace(" ", ""),
)
@pytest.mark.sample(6)
def test_dropout(hamming, row_sums, gone, moment, outcome):
    presence = Presence()
    action, kind, *after = moment
    presence.lose_when(gone, action, kind, after=sum(after))
    predictions = xclp.propagate_labels(
        *data(), hamming=hamming, row_sums=row_sums, presence=presence, **PARAMETERS
    )
    assert presence.gone == {gone}
    left = predictions.pop(gone)
    assert np.all(left.labels == -1)
    assert not left.confidences.any()
    assert not left.scores.any()
    assert disagreement(predictions, expected(outcome, gone), NUM_CLIENTS) <= 1


def test_the_three_outcomes_are_not_the_same():
    """Otherwise the tests above would not tell them apart."""
    scores = [
        np.concatenate([own.scores for own in expected(outcome, 1)])
        for outcome in (never_there, unlabeled, counted)
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.max(np.abs(scores[one] - scores[other])) > 1e-3


@pytest.mark.parametrize("row_sums_name", ["masked", "masked_resilient"])
@pytest.mark.parametrize("moment", [("receive", "start"), ("send", "upload")])
@pytest.mark.sample(2)
def test_most_leave(row_sums_name, moment):
    """Two of three: the last one has its own labels, as if the others had had none."""
    presence = Presence()
    for gone in (0, 2):
        presence.lose_when(gone, *moment)
    predictions = xclp.propagate_labels(
        *data(), hamming="masked", row_sums=row_sums_name, presence=presence, **PARAMETERS
    )
    vectors, labels = data()
    alone = [labels[j] if j == 1 else np.full_like(labels[j], -1) for j in range(NUM_CLIENTS)]
    plain = xclp.propagate_labels(vectors, alone, **PARAMETERS)
    assert disagreement(predictions[1:2], plain[1:2], NUM_CLIENTS) <= 1


@pytest.mark.parametrize("row_sums_name", ["masked", "masked_resilient"])
def test_who_leaves_inside_costs_another_round_or_none(row_sums_name):
    """A restart has the first client upload once more; with double masks nobody does."""
    presence = Presence()
    presence.lose_when(1, "send", "upload")
    parameters = xclp.Parameters(hamming="masked", row_sums=row_sums_name, **PARAMETERS)
    clients = digits(NUM_CLIENTS, NUM_POINTS + 2, labeled=0.5)  # of equal sizes both cost the same
    result = xclp.cross_client_label_propagation(*clients, parameters, presence=presence)
    sizes = [len(v) for v in clients[0]]
    assert sizes[1] != sizes[2]
    without = message_sizes.single_masks([sizes[0], sizes[2]], 10)["upload"]
    of_first = 8 * (sizes[1] + sizes[2]) * 10
    of_last = 8 * (sizes[0] + sizes[1]) * 10
    uploaded = without + of_first if row_sums_name == "masked" else of_first + of_last
    assert result.communication.upload["upload"] == uploaded


@pytest.mark.parametrize(
    ("row_sums_name", "action", "kind"),
    [
        ("masked", "receive", "invite"),
        ("masked", "send", "own"),
        ("masked", "receive", "start"),
        ("masked", "receive", "sums"),
        ("masked_resilient", "send", "upload"),
        ("masked_resilient", "receive", "survivors"),
        ("masked_resilient", "receive", "sums"),
        ("masked_resilient_signed", "send", "signature"),
    ],
)
@pytest.mark.sample(4)
def test_everybody_leaves(row_sums_name, action, kind):
    presence = Presence()
    for client in range(NUM_CLIENTS):
        presence.lose_when(client, action, kind)
    parameters = xclp.Parameters(hamming="masked", row_sums=row_sums_name, **PARAMETERS)
    result = xclp.cross_client_label_propagation(*data(), parameters, presence=presence)
    assert all(np.all(own.labels == -1) for own in result.predictions)
    assert [len(own.labels) for own in result.predictions] == [len(v) for v in data()[0]]
    assert sum(np.sum(own.labels < 0) for own in result.predictions) == NUM_POINTS
    assert result.communication.download["invite"] == 0


def test_two_leave_one_after_the_other():
    """One during SecureHamming, one inside SecureRowSums; the last one's labels count alone."""
    presence = Presence()
    presence.lose_when(0, "send", "shares")
    presence.lose_when(2, "send", "upload")
    predictions = xclp.propagate_labels(
        *data(), hamming="masked", row_sums="masked", presence=presence, **PARAMETERS
    )
    vectors, labels = data()
    plain = xclp.propagate_labels(
        vectors[1:], [labels[1], np.full_like(labels[2], -1)], **PARAMETERS
    )
    assert disagreement(predictions[1:2], plain[:1], NUM_CLIENTS) <= 1
    for gone in (0, 2):
        assert np.all(predictions[gone].labels == -1)


# --- at every single message ---------------------------------------------------------------------

KEY = paillier.generate_key(128, insecure=True)


def every_moment(gone, run, num_clients=NUM_CLIENTS):
    """(session, outcome) of runs in which the client leaves at its first, second ... message."""
    for action in ("send", "receive"):
        for number in count():
            presence = Presence()
            presence.lose_when(gone, action, "", after=number)
            session = Session(num_clients, presence=presence)
            outcome = run(session)
            if not presence.gone:  # it has no more messages
                assert number >= 2  # of setup at least
                break
            yield session, outcome


@pytest.mark.parametrize("protocol", [name for name in HAMMING if name != "plaintext"])
@pytest.mark.parametrize("gone", range(NUM_CLIENTS))
@pytest.mark.sample(3)
def test_every_message_of_hamming(protocol, gone, monkeypatch):
    """H of the others is as if the client had never been there, whenever it left."""
    monkeypatch.setattr(paillier, "generate_key", lambda bits: KEY)
    rng = np.random.default_rng(0)
    codes = {j: rng.integers(0, 2**32, (2, 1), dtype=np.uint32) for j in range(NUM_CLIENTS)}
    others = [j for j in range(NUM_CLIENTS) if j != gone]
    indices, distances = knn.hamming_knn(np.concatenate([codes[j] for j in others]), 2)

    def run(session):
        return cross_steps.nearest_others(
            session, codes, 2, getattr(protocols, protocol), key_bits=128
        )

    for _, neighbors in every_moment(gone, run):
        assert neighbors.clients == others
        np.testing.assert_array_equal(neighbors.indices, indices)
        np.testing.assert_array_equal(neighbors.distances, distances)


ROW_SUMS = {
    "masked": {},
    "masked_resilient": {"resilient": True},
    "masked_resilient_signed": {"resilient": True, "signed": True},
}


@pytest.mark.parametrize(
    ("protocol", "num_clients", "gone"),
    [
        *(
            (name, p, j)
            for name in ("masked", "masked_resilient")
            for p in (2, 3)
            for j in range(p)
        ),
        *(("masked_resilient_signed", 4, j) for j in (0, 3)),
    ],
)
@pytest.mark.sample(6)
def test_every_message_of_row_sums(protocol, num_clients, gone):
    """The others' sums are with the client's contribution or without, all alike; it gets none."""
    rng = np.random.default_rng(0)
    z = {j: rng.normal(size=(5, 2)) for j in range(num_clients)}
    parts = slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)
    rows = dict(zip(z, parts, strict=False))
    without = sum(own for j, own in z.items() if j != gone)
    counts = []

    def run(session):
        return cross_steps.sums_of_rows(session, z, rows, **ROW_SUMS[protocol])

    for session, sums in every_moment(gone, run, num_clients):
        assert sums.keys() == set(session.clients) == set(range(num_clients)) - {gone}
        error = {
            is_counted: max(
                np.max(np.abs(own - (without + is_counted * z[gone])[rows[j]]))
                for j, own in sums.items()
            )
            for is_counted in (False, True)
        }
        assert min(error.values()) <= FixedPoint(num_clients).error
        counts.append(error[True] < error[False])
    assert set(counts) == {False, True}
