"""Clients that leave a run of Algorithm 1, message by message, against what Section 3.3 says comes out."""

from functools import cache
from itertools import count

import numpy as np
import pytest
from secure_labels import digits

from jaxfed import xclp
from jaxfed.kernels import knn
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import protocols
from jaxfed.secure.primitives import paillier
from jaxfed.secure.primitives.ring import FixedPoint
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


def unlabeled(gone):
    """Before or inside SecureRowSums: labels as if all its points had been unlabeled."""
    vectors, labels = data()
    labels = [np.full_like(y, -1) if j == gone else y for j, y in enumerate(labels)]
    plain = xclp.propagate_labels(vectors, labels, **PARAMETERS)
    return [prediction for j, prediction in enumerate(plain) if j != gone]


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
