"""Hellos: what a client says of itself and its data, and whom the server refuses."""

import json
import logging
import re

import numpy as np
import pytest
from local_network import LocalNetwork

from jaxfed.flower.client import client_step, hello
from jaxfed.flower.client.client_data import ClientData, ClientSettings, Points
from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage
from jaxfed.flower.messages.setup import Setup
from jaxfed.flower.server.clients import Clients, Expected
from jaxfed.flower.server.exchange import Exchange

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2, 3)).astype(np.float32)
Y = np.array([0, 2, -1, 2, -1, 1])
PUBLIC = RNG.normal(size=(4, 2, 3)).astype(np.float32)
CONFIG = "c0ffee"


def hello_of(folder, client, *, name="north", x=X, y=Y, public=PUBLIC, **options):
    folder.mkdir(exist_ok=True)
    settings = ClientSettings(number=client, name=name)
    data = ClientData(folder, settings, Points(x, y), None, public)
    return hello.hello(data, **({"config": CONFIG} | options))


def client_of(folder, number, **changes):
    """A client app that says hello; changes of its fields come last."""
    fields = {name: changes.pop(name) for name in list(changes) if name in hello.Hello._fields}

    def serve(request):
        return client_step.answer(
            request,
            lambda step, content: records.packed(
                hello_of(folder, number, **changes)._replace(**fields)
            ),
        )

    return serve


def clients_of(network, expected=None, *, deadline=100, retries=1, **known):
    clock = network.clock
    exchange = Exchange(network, {}, "r", deadline, retries, clock=clock, sleep=clock.sleep)
    told = Setup("", "fedavg", 3, 3)
    return Clients(exchange, expected or Expected(number=3, config=CONFIG), told, **known)


def admitted(apps, expected=None, *, faults=None, asked=None, **known):
    found = clients_of(network := LocalNetwork(apps, faults), expected, **known)
    found.admit(network.nodes() if asked is None else asked)
    return found


def test_a_hello_counts(tmp_path):
    said = hello_of(tmp_path, 0)
    assert (said.dtype, said.shape, said.counts[:2]) == ("float32", (2, 3), (6, 4))
    np.testing.assert_allclose(said.counts.sums.total, X.sum((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(said.counts.sums.square, np.square(X).sum((0, 1)), rtol=1e-5)
    assert hello_of(tmp_path, 0, y=np.full(6, -1)).counts.labels == 0
    nobody = hello_of(tmp_path, 0, x=X[:0], y=Y[:0]).counts
    assert (nobody[:2], nobody.sums.total.tolist()) == ((0, 0), [0] * 3)


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("y", [Y, np.full(6, -1)])
def test_a_hello_comes_back(tmp_path, y, sums):
    record = records.packed(hello_of(tmp_path, 1, y=y, sums=sums))
    back = records.packed(hello.from_record(records.decode(*records.encode(record))))
    assert records.encode(back) == records.encode(record)


def test_the_checksum_of_data_is_of_no_use_to_who_suspects_data(tmp_path):
    """Equal data in another folder has another checksum; changed data in one folder has another, too."""
    first, second = hello_of(tmp_path / "a", 0), hello_of(tmp_path / "b", 0)
    assert first.data != second.data
    assert first.data == hello_of(tmp_path / "a", 0).data
    for changed in ({"x": X + 1}, {"y": -Y}, {"x": X.astype(np.float64)}):
        assert hello_of(tmp_path / "a", 0, **changed).data != first.data
    assert first.public == second.public == hello.checksum({"x": PUBLIC})
    assert hello_of(tmp_path / "a", 0, public=None).public == ""


def test_only_counts_leave(tmp_path):
    """Of the arrays, no value is in the record but sums over all examples."""
    said = hello_of(tmp_path, 0)
    record = records.packed(said)
    assert not any(isinstance(value, np.ndarray | bytes | float) for value in record.values())
    assert json.loads(record.pop("counts")) == {
        "examples": 6,
        "labels": 4,
        "sums": {name: np.asarray(v).tolist() for name, v in said.counts.sums._asdict().items()},
    }
    assert not any(f"{value}" in str(record.values()) for value in X.ravel())
    assert not np.isin(np.float32([said.counts.sums.total, said.counts.sums.square]), X).any()


def counts(**changes):
    def change(record):
        found = json.loads(record["counts"])
        own = {name: v for name, v in changes.items() if name in found}
        found["sums"] |= {name: v for name, v in changes.items() if name not in found}
        return record | {"counts": json.dumps(found | own)}

    return change


def wrong(**changes):
    return lambda record: record | changes


MALFORMED = {
    "a number": wrong(client=-1),
    "more examples than there can be": counts(examples=2**63),
    "a text": wrong(jaxfed=1),
    "more labels than examples": counts(labels=7),
    "a truth value for a number": counts(examples=True),
    "sums of more values": counts(values=13),
    "sums without squares": counts(square=[]),
    "sums of other features": counts(total=[1, 1]),
    "sums of lists": counts(total=[[1, 1, 1]]),
    "sums of texts": counts(total=["a", "b", "c"]),
    "sums that are no list": counts(total=1.0),
    "sums that are not finite": counts(square=[0, float("nan"), 0]),
    "a shape of other numbers": wrong(shape="[1.0, 3.0]"),
    "an empty axis": wrong(shape="[0, 3]"),
    "no axis": wrong(shape="[]"),
    "no shape": wrong(shape="3"),
    "columns that are no list": wrong(columns='"abc"'),
    "columns that are no texts": wrong(columns="[1, 2, 3]"),
    "columns without an end": wrong(columns="[" * 100_000),
    "more columns than there are": wrong(columns='["a", "b", "c", "d"]'),
    "one field more": wrong(more=1),
    "nothing": lambda record: {},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_hello_is_a_bad_message(tmp_path, case):
    record = records.packed(hello_of(tmp_path, 1))
    hello.from_record(record)
    with pytest.raises(BadMessage):
        hello.from_record(MALFORMED[case](record))


def test_nodes_become_clients(tmp_path):
    clients = {90: client_of(tmp_path / "a", 0), 80: client_of(tmp_path / "b", 2)}
    found = admitted(clients)
    assert found.nodes == {0: 90, 2: 80}
    assert found.hellos.keys() == {0, 2}
    assert found.refused == {}


REFUSED = {
    "version": ({"jaxfed": "9.9"}, r"it has jaxfed 9\.9, the server has \d.*"),
    "JAX": ({"jax": "0.1\n"}, r"it has JAX 0\.1, the server has \d.*"),
    "config": (
        {"config": "other"},
        r"client 1 resolves the config differently \(other, not c0ffee\)",
    ),
    "number": ({"client": 3}, "there is no client number 3"),
    "name": ({"name": "n" * 10**5}, "client 1 has the name 'n{300}', and config.+ has 'north'"),
    "public": ({"public": "no"}, "client 1 has other public examples than the server"),
    "none public": ({"public": ""}, "client 1 has no public examples"),
    "example": (
        {"x": np.ones((len(X), 9), np.float32)},
        r"client 1 has examples \['float32', 9\], the server \['\w+', .*",
    ),
    "data": ({"data": "no"}, "client 1 has other data than earlier in this run, or a new folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_node_that_does_not_fit_is_refused_in_one_line(tmp_path, caplog, case):
    changes, reason = REFUSED[case]
    expected = Expected(
        number=3,
        config=CONFIG,
        public=hello.checksum({"x": PUBLIC}),
        names=["north"] * 3,
        example=[X.dtype.name, *X.shape[1:]],
        data={1: hello_of(tmp_path / "b", 1).data},
    )
    clients = {5: client_of(tmp_path / "a", 0), 6: client_of(tmp_path / "b", 1, **changes)}
    with caplog.at_level(logging.WARNING, logger="absl"):
        found = admitted(clients, expected)
    assert found.nodes == {0: 5}
    assert found.refused.keys() == {6}
    assert re.fullmatch(reason, found.refused[6])
    assert [record.getMessage() for record in caplog.records] == [
        f"refused node 6: {found.refused[6]}"
    ]


def test_a_number_is_that_of_the_first_node_that_has_it(tmp_path):
    clients = {node: client_of(tmp_path / str(node), 0 if node < 7 else 1) for node in (5, 6, 7)}
    found = admitted(clients)
    assert (found.nodes, found.is_wrong) == ({0: 5, 1: 7}, False)
    assert found.refused == {6: "client number 0 is that of node 5"}
    found = admitted(clients, asked=[5], nodes={0: 6})
    assert found.refused == {5: "client number 0 is that of node 6"}


@pytest.mark.parametrize("fault", ["killed", "late", "garbage", "raise", "crash"])
def test_a_node_without_a_hello_is_refused(tmp_path, fault):
    clients = {5: client_of(tmp_path / "a", 0), 6: client_of(tmp_path / "b", 1)}
    found = admitted(clients, faults={(6, 1): [fault] * 2})
    assert found.nodes == {0: 5}
    assert found.refused.keys() == {6}


class Joining(LocalNetwork):
    """A network in which nodes appear after so many seconds."""

    def __init__(self, clients, after, faults=None):
        super().__init__(clients, faults)
        self.since = {node: self.clock() + seconds for node, seconds in after.items()}

    def nodes(self):
        return [node for node in super().nodes() if self.since.get(node, 0) <= self.clock()]


def gathered(network, number, tell=lambda line: None, **options):
    expected = Expected(number=number, config=CONFIG, **options)
    found = clients_of(network, expected, deadline=10, retries=0)
    found.gather(60, tell)
    return found, network.clock() - 100


def test_waiting_ends_with_the_last_client_or_the_time(tmp_path):
    clients = {5: client_of(tmp_path / "a", 0), 6: client_of(tmp_path / "b", 1)}
    found, seconds = gathered(Joining(clients, {6: 20}), 2)
    assert found.nodes == {0: 5, 1: 6}
    assert 20 <= seconds < 25
    found, seconds = gathered(Joining(clients, {6: 90}), 2)
    assert found.nodes == {0: 5}  # who is here is asked, so that the error says who is missing
    assert 60 <= seconds < 65


def test_a_waiting_server_names_who_is_missing(tmp_path):
    lines, names = [], ("north", "west", "south")
    clients = {5 + j: client_of(tmp_path / names[j], j, name=names[j]) for j in (0, 1)}
    gathered(Joining(clients, {6: 40}), 3, lines.append, names=names)
    assert lines == [
        "waiting for clients 1 (west), 2 (south); 1 of 3 are here, after 1 of 60 s",
        "waiting for clients 1 (west), 2 (south); 1 of 3 are here, after 31 of 60 s",
        "waiting for clients 2 (south); 2 of 3 are here, after 41 of 60 s",
    ]
    many = Expected(number=20, config=CONFIG)
    found = clients_of(LocalNetwork({}), many, nodes=dict.fromkeys(range(5), 1))
    assert found.missing() == "5, 6, 7, 8, 9, 10, 11, 12, 13, 14 and 5 more"


@pytest.mark.parametrize(("number", "faults"), [(7, {}), (1, {(9, 1): "late"})])
def test_a_node_that_is_no_client_does_not_end_the_wait(tmp_path, number, faults):
    """One of another run, or one that is gone and still listed."""
    numbers = {5: 0, 6: 1, 9: number}
    clients = {node: client_of(tmp_path / str(node), j) for node, j in numbers.items()}
    found, seconds = gathered(Joining(clients, {6: 20}, faults), 2)
    assert (found.nodes, found.refused.keys()) == ({0: 5, 1: 6}, {9})
    assert 20 <= seconds < 45


@pytest.mark.parametrize("changes", [{"config": "other"}, {"jax": "0.1"}, {"data": "no"}])
def test_a_client_that_is_wrong_ends_the_wait(tmp_path, changes):
    """Its operator sees the reason at once, whoever is missing."""
    clients = {5: client_of(tmp_path / "a", 0), 6: client_of(tmp_path / "b", 1, **changes)}
    known = {1: hello_of(tmp_path / "d", 1).data}
    found, seconds = gathered(Joining(clients, {5: 50}), 2, data=known)
    assert (found.nodes, found.refused.keys()) == ({}, {6})
    assert seconds < 10
