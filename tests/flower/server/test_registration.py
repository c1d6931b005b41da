"""Registrations: what a client says of itself and its data, what it refuses, and how nodes become clients."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from local_network import LocalNetwork

from jaxfed.flower.client import client_run, client_step
from jaxfed.flower.client.client_data import ClientData, ClientSettings, Points
from jaxfed.flower.client.client_step import StepRefused
from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage
from jaxfed.flower.messages.setup import Form, Setup
from jaxfed.flower.server.clients import Clients
from jaxfed.flower.server.exchange import Exchange

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2, 3)).astype(np.float32)
Y = np.array([0, 2, -1, 2, -1, 1])
PUBLIC = RNG.normal(size=(4, 2, 3)).astype(np.float32)
FORM = Form("float32", (2, 3), ("a", "b", "c"), client_run.checksum(PUBLIC))
SETTINGS = ClientSettings(number=1, name="north", least_examples=2)
DATA = ClientData(None, SETTINGS, Points(X, Y), None, PUBLIC, FORM.columns)


def registration_of(number=1, form=FORM, *, sums=True, **changes):
    settings = replace(SETTINGS, number=number)
    return client_run.registration(DATA._replace(settings=settings, **changes), form, sums=sums)


def test_a_registration_counts():
    said = registration_of()
    assert said._fields == ("client", "name", "counts")  # nothing else of its data leaves
    assert said.counts[:2] == (6, 4)
    np.testing.assert_allclose(said.counts.sums.total, X.sum((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(said.counts.sums.square, np.square(X).sum((0, 1)), rtol=1e-5)
    nobody = registration_of(train=Points(X[:0], Y[:0])).counts
    assert (nobody[:2], nobody.sums.total.tolist()) == ((0, 0), [0] * 3)
    with pytest.raises(StepRefused, match="fewer examples than the least_examples = 2"):
        registration_of(train=Points(X[:1], Y[:1]))
    registration_of(train=Points(X[:1], Y[:1]), sums=False)


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("y", [Y, np.full(6, -1)])
def test_a_registration_comes_back(y, sums):
    record = records.packed(registration_of(train=Points(X, y), sums=sums))
    read = client_run.from_record(records.decode(*records.encode(record)), (2, 3))
    assert records.encode(records.packed(read)) == records.encode(record)


def counts(**changes):
    def change(record):
        found = json.loads(record["counts"])
        own = {name: v for name, v in changes.items() if name in found}
        found["sums"] |= {name: v for name, v in changes.items() if name not in found}
        return record | {"counts": json.dumps(found | own)}

    return change


MALFORMED = {
    "a number": lambda record: record | {"client": -1},
    "a text": lambda record: record | {"name": 1},
    "one field more": lambda record: record | {"more": 1},
    "nothing": lambda record: {},
    "counts without an end": lambda record: record | {"counts": "[" * 100_000},
    "more examples than there can be": counts(examples=2**63),
    "more labels than examples": counts(labels=7),
    "a truth value for a number": counts(examples=True),
    "sums of more values": counts(values=13),
    "sums without squares": counts(square=[]),
    "sums of other features": counts(total=[1, 1]),
    "sums of lists": counts(total=[[1, 1, 1]]),
    "sums of texts": counts(total=["a", "b", "c"]),
    "sums that are not finite": counts(square=[0, float("nan"), 0]),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_registration_is_a_bad_message(case):
    record = records.packed(registration_of())
    client_run.from_record(record, (2, 3))
    with pytest.raises(BadMessage):
        client_run.from_record(MALFORMED[case](record), (2, 3))


REFUSED = {  # what the run has in place of the client's -> why the client refuses
    "dtype uint8": FORM._replace(dtype="uint8"),
    "shape (2, 4)": FORM._replace(shape=(2, 4)),
    "columns ('a', 'c', 'b')": FORM._replace(columns=("a", "c", "b")),
    "columns ()": FORM._replace(columns=()),
    "public 0": FORM._replace(public="0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_form_is_refused_in_one_line(case):
    what, _, theirs = case.partition(" ")
    with pytest.raises(StepRefused) as caught:
        registration_of(form=REFUSED[case])
    line = str(caught.value)
    assert line.startswith(f"north has examples of {what} ")
    assert line.endswith(f", not {theirs}")
    assert ("in another order" in line) == ("'c', 'b'" in case)
    assert "\n" not in line


def client_of(number, form=FORM):
    """A client app that registers."""
    return lambda request: client_step.answer(
        request, lambda step, content: records.packed(registration_of(number, form))
    )


def clients_of(network, number=3, **known):
    clock = network.clock
    exchange = Exchange(network, {}, "r", 10, clock=clock, sleep=clock.sleep)
    return Clients(exchange, Setup("", "fedavg", number, 3), FORM, **known)


def admitted(apps, *, faults=None, asked=None, **known):
    found = clients_of(network := LocalNetwork(apps, faults), **known)
    found.admit(network.nodes() if asked is None else asked)
    return found


def test_nodes_become_clients(caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        found = admitted({90: client_of(0), 80: client_of(2), 85: client_of(3)})
    assert found.nodes == {0: 90, 2: 80}
    assert found.registrations.keys() == {0, 2}
    assert found.refused == {85: "there is no client number 3"}
    assert [each.getMessage() for each in caplog.records] == [
        "refused node 85: there is no client number 3"
    ]


def test_a_number_is_that_of_the_first_node_that_has_it():
    found = admitted({5: client_of(0), 6: client_of(0), 7: client_of(1)})
    assert (found.nodes, found.is_wrong) == ({0: 5, 1: 7}, False)
    assert found.refused == {6: "client number 0 is that of node 5"}
    found = admitted({5: client_of(0)}, nodes={0: 6})
    assert found.refused == {5: "client number 0 is that of node 6"}


@pytest.mark.parametrize("fault", ["killed", "late", "garbage", "raise", "crash"])
def test_a_node_without_a_registration_is_refused(fault):
    found = admitted({5: client_of(0), 6: client_of(1)}, faults={(6, 1): fault})
    assert found.nodes == {0: 5}
    assert found.refused.keys() == {6}


class Joining(LocalNetwork):
    """A network in which nodes appear after so many seconds."""

    def __init__(self, clients, after, faults=None):
        super().__init__(clients, faults)
        self.since = {node: self.clock() + seconds for node, seconds in after.items()}

    def nodes(self):
        return [node for node in super().nodes() if self.since.get(node, 0) <= self.clock()]


def gathered(network, number, tell=lambda line: None):
    found = clients_of(network, number)
    found.gather(60, tell)
    return found, network.clock() - 100


def test_waiting_ends_with_the_last_client_or_the_time():
    clients, lines = {5: client_of(0), 6: client_of(1)}, []
    found, seconds = gathered(Joining(clients, {6: 20}), 2)
    assert found.nodes == {0: 5, 1: 6}
    assert 20 <= seconds < 25
    found, seconds = gathered(Joining(clients, {6: 40}), 3, lines.append)
    assert found.nodes == {
        0: 5,
        1: 6,
    }  # who is here is asked, so that the error says who is missing
    assert 60 <= seconds < 65
    assert lines == ["waiting for clients 1, 2 of 3", "waiting for clients 2 of 3"]
    found = clients_of(LocalNetwork({}), 20, nodes=dict.fromkeys(range(5), 1))
    assert found.missing() == "5, 6, 7, 8, 9, 10, 11, 12, 13, 14 and 5 more"


@pytest.mark.parametrize(("number", "faults"), [(7, {}), (1, {(9, 1): "late"})])
def test_a_node_that_is_no_client_does_not_end_the_wait(number, faults):
    """One of another run, or one that is gone and still listed."""
    clients = {5: client_of(0), 6: client_of(1), 9: client_of(number)}
    found, seconds = gathered(Joining(clients, {6: 20}, faults), 2)
    assert (found.nodes, found.refused.keys()) == ({0: 5, 1: 6}, {9})
    assert 20 <= seconds < 45


def test_a_client_that_refuses_ends_the_wait():
    """Its operator sees the reason at once, whoever is missing."""
    clients = {5: client_of(0), 6: client_of(1, FORM._replace(public="0"))}
    found, seconds = gathered(Joining(clients, {5: 50}), 2)
    assert (found.nodes, found.refused.keys()) == ({}, {6})
    assert seconds < 10
