"""XCLP whose clients are replayed from letters: the simulation's labels, and what the server receives."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from jaxfed.errors import ProtocolError
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution import HERE
from jaxfed.secure import influence_columns as columns
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.session import framing
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.remote_calls import Call, CallMessage
from jaxfed.xclp import Parameters, cross_client_label_propagation, network
from jaxfed.xclp.network import LabelingClient, labeled_by_clients

RNG = np.random.default_rng(3)
SIZES, DIM, NUM_CLASSES = (9, 1, 6), 5, 3
VECTORS = [RNG.normal(size=(size, DIM)).astype(np.float32) for size in SIZES]
LABELS = [np.full(size, -1, np.int32) for size in SIZES]
LABELS[0][:4], LABELS[1][:] = (0, 1, 2, 1), 2  # client 2 has none
SECURE = {"hamming": "masked", "influence": "columns", "num_bits": 64, "num_neighbors": 4}


def parameters(row_sums="masked", **more):
    return Parameters(num_classes=NUM_CLASSES, seed=7, row_sums=row_sums, **SECURE, **more)


class Network:
    """Clients with 32 random bytes and the letters that they have answered; `absent`: {client: name}."""

    def __init__(self, p, fault=None):
        self.p, self.fault, self.sizes = p, fault or {}, {}
        self.seeds = {j: os.urandom(32) for j in range(len(SIZES))}
        self.past = {j: [] for j in self.seeds}
        self.names, self.received = [], []

    def client(self, j):
        client = LabelingClient(VECTORS[j], LABELS[j], self.p, j, self.seeds[j])
        for letter, answer in self.past[j]:
            assert client.party.play(letter) == answer
        return client

    def carry(self, name, sent):
        self.names.append(name)
        answers = {}
        for j, letter in sent.items():
            at, answer = self.fault.get(j, ("", None))
            if at != name:
                answer = self.client(j).party.play(letter)
                self.past[j].append((letter, answer))
            if answer is not None:
                answers[j], self.sizes[j] = answer, SIZES[j]
                self.received.append(answer)
        return answers

    def run(self):
        return labeled_by_clients(len(SIZES), self.carry, self.sizes, self.p, HERE)

    def assert_labels(self, expected, clients):
        for j in clients:
            found, wanted = self.client(j).prediction(), expected.predictions[j]
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("row_sums", "more", "exchanges"),
    [
        ("masked", {}, 6),
        ("masked_resilient", {}, 9),
        ("masked_resilient_signed", {}, 10),
        ("masked", {"label_matrix": "class_balanced", "client_prior": 0.5}, 6),
    ],
)
@pytest.mark.sample(2)
def test_labels_are_the_simulations(row_sums, more, exchanges):
    p = parameters(row_sums, **more)
    expected = cross_client_label_propagation(VECTORS, LABELS, p)
    network = Network(p)
    found = network.run()
    assert (found.clients, len(network.names)) == ([0, 1, 2], exchanges)
    assert (found.accuracy.steps, found.accuracy.residual) == (expected.steps, expected.residual)
    assert found.communication.metrics() == expected.communication.metrics()
    network.assert_labels(expected, range(3))
    assert any((own.labels >= 0).any() for own in expected.predictions)


@pytest.mark.sample(8)
@pytest.mark.parametrize("answer", [None, b"garbage"])
@pytest.mark.parametrize(
    ("row_sums", "name", "kind"),
    [
        ("masked", "join", "hello"),
        ("masked", "give_group_secret", "hello"),  # setup begins again without the client
        ("masked", "send_own", "own"),
        ("masked", "send_positions", "positions"),
        ("masked", "upload", "upload"),
        ("masked_resilient", "announce", "mask_key"),
        ("masked_resilient", "share_secrets", "secrets"),
        ("masked_resilient", "upload", "upload"),
        ("masked_resilient", "reveal", "survivors"),
    ],
)
def test_a_client_that_leaves_is_as_in_the_simulation(row_sums, name, kind, answer):
    p, presence, leaving = parameters(row_sums), Presence(), 1
    presence.lose_when(leaving, "receive" if kind == "survivors" else "send", kind)
    expected = cross_client_label_propagation(VECTORS, LABELS, p, presence=presence)
    network = Network(p, {leaving: (name, answer)})
    assert network.run().clients == [0, 2]
    network.assert_labels(expected, [0, 2])


def test_the_server_receives_no_codes_features_or_labels():
    network = Network(parameters("masked_resilient"))
    network.run()
    client, received = network.client(0), b"".join(network.received)
    for row in (*client.codes, *VECTORS[0], client.prediction().scores[4]):
        assert row.tobytes() not in received
    assert LABELS[0][:4].tobytes() not in received
    assert network.seeds[0] not in received


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"is_resilient": True}, "by another protocol"),
        ({"shorter": {}}, "with other rows"),
        ({"shorter": {0: slice(1, 9)}}, "with other rows"),
    ],
)
def test_row_sums_of_another_plan(change, line):
    """Sums of fewer rows or clients than the settings say would be narrower than a client agreed to."""
    plan = {"is_resilient": False, "signed": False, "shorter": {0: slice(0, 9)}}
    client = LabelingClient(VECTORS[0], LABELS[0], parameters(), 0, bytes(32))
    with pytest.raises(ProtocolError, match=f"row sums {line}"):
        client._sums_client(SimpleNamespace(address=0), None, **plan | change)


@pytest.mark.parametrize("labels", [(0, 0), (0, 1)])
def test_columns_that_overflow_where_two_labels_are_equal(monkeypatch, labels):
    """Whether a client fails would tell the server which of its labels are equal."""
    real = columns.send_columns

    def too_large(endpoint, client, sent):
        real(endpoint, client, np.full_like(sent, 0.6 * FixedPoint(len(SIZES)).largest))

    monkeypatch.setattr(columns, "send_columns", too_large)
    own = np.array([*labels, *[-1] * 7], np.int32)
    monkeypatch.setitem(globals(), "LABELS", [own, *LABELS[1:]])
    with pytest.raises(ProtocolError, match="cannot hold, whatever the labels"):
        Network(parameters()).run()


def of_client(x, y):
    mask = np.ones((1, len(y)), bool)
    return Cohort(np.zeros(1, np.int32), x[None], y[None], mask)


def request(number=1, letter=None):
    frame = framing.Header(bytes(16), SERVER, 0, "invite", 0, 0, is_sealed=False).packed()
    join = CallMessage([Call(1, "setup", {}, "join", [])], [frame]).to_bytes()
    session = json.dumps({"address": 0, "seed": 7, "round": number})
    return {"terms": session, "message": join if letter is None else letter}


def test_a_state_serves_one_session_on_the_same_examples():
    p, cohort = parameters(), of_client(VECTORS[0], LABELS[0])
    own, first = network.answered(p, "join", network.NO_STATE, request(), cohort)
    _, second = network.answered(p, "join", network.NO_STATE, request(), cohort)
    assert first["frames"] != second["frames"]  # fresh keys
    assert own["once"] is True
    assert len(own["seed"]) == 32
    empty = request(letter=CallMessage([], []).to_bytes())
    after, _ = network.answered(p, "agree", own, empty, cohort)
    assert after["seed"] == own["seed"]
    # A later round begins another session; it cannot go on with this one.
    later, _ = network.answered(p, "join", after, request(2), cohort)
    assert later["seed"] != own["seed"]
    with pytest.raises(ProtocolError, match="without a session"):
        network.answered(p, "upload", own, request(2), cohort)
    with pytest.raises(ProtocolError, match="without a session"):
        network.answered(p, "upload", network.NO_STATE, request(), cohort)
    with pytest.raises(ProtocolError, match="examples have changed"):
        network.answered(p, "agree", own, empty, of_client(VECTORS[0] + 1, LABELS[0]))
    ended, _ = network.answered(p, "end", own, empty, cohort)
    assert (ended["once"], ended["seed"], ended["past"]) == (False, b"", b"")
    assert np.frombuffer(ended["label"], np.int32).tolist() == [-1] * SIZES[0]
