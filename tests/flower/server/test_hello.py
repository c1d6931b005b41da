"""Hellos: what a client says of itself and its data, and whom the server refuses."""

import logging
import re

import numpy as np
import pytest
from local_network import LocalNetwork

from jaxfed.flower.client import client_step, hello
from jaxfed.flower.client.client_data import ClientData, ClientSettings, Points
from jaxfed.flower.messages import records, steps
from jaxfed.flower.messages.records import BadMessage
from jaxfed.flower.server.clients import Clients, Expected

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2, 3)).astype(np.float32)
Y = np.array([0, 2, -1, 2, -1, 1])
PUBLIC = RNG.normal(size=(4, 2, 3)).astype(np.float32)
CONFIG = "c0ffee"


def hello_of(folder, client, *, name="north", x=X, y=Y, public=PUBLIC, **options):
    folder.mkdir(exist_ok=True)
    settings = ClientSettings(number=client, name=name)
    data = ClientData(folder, settings, Points(x, y), None, public)
    return hello.hello(data, "r", **({"config": CONFIG} | options))


def client_of(folder, number, **changes):
    """A client app that says hello; changes of its fields come last."""
    fields = {name: changes.pop(name) for name in list(changes) if name in hello.Hello._fields}

    def serve(request):
        return client_step.answer(
            request,
            lambda step, content: (
                hello_of(folder, number, **changes)._replace(**fields).to_record()
            ),
        )

    return serve


def clients_of(network, expected=None, *, deadline=100, retries=1, **known):
    clock = network.clock
    exchanged = {"run": "r", "deadline": deadline, "retries": retries}
    exchanged |= {"clock": clock, "sleep": clock.sleep}
    expected = expected or Expected(number=3, config=CONFIG)
    return Clients(network, expected, {}, exchanged, **known)


def admitted(apps, expected=None, *, faults=None, asked=None, **known):
    found = clients_of(network := LocalNetwork(apps, faults), expected, **known)
    found.admit(network.nodes() if asked is None else asked)
    return found


def test_a_hello_counts(tmp_path):
    said = hello_of(tmp_path, 0)
    assert (said.example, said.counts[:2]) == (("float32", 2, 3), (6, 4))
    np.testing.assert_allclose(said.counts.sums.total, X.sum((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(said.counts.sums.square, np.square(X).sum((0, 1)), rtol=1e-5)
    assert hello_of(tmp_path, 0, y=np.full(6, -1)).counts.labels == 0
    nobody = hello_of(tmp_path, 0, x=X[:0], y=Y[:0]).counts
    assert (nobody[:2], nobody.sums.total.tolist()) == ((0, 0), [0] * 3)


@pytest.mark.parametrize("name", ["total", "square"])
@pytest.mark.parametrize("sums", [np.zeros(2), np.zeros(3, np.float32), np.full(3, np.nan), 1.0])
def test_sums_of_another_form_are_refused(tmp_path, name, sums):
    record = hello_of(tmp_path, 0).to_record() | {f"census.{name}": sums}
    with pytest.raises(BadMessage, match="census"):
        hello.from_record(record)


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("y", [Y, np.full(6, -1)])
def test_a_hello_comes_back(tmp_path, y, sums):
    record = hello_of(tmp_path, 1, y=y, sums=sums).to_record()
    back = hello.from_record(records.decode(*records.encode(record))).to_record()
    assert records.encode(back) == records.encode(record)


def test_a_hello_says_the_last_step_of_its_run(tmp_path):
    step = steps.Step("r", 7, "train", round=3, client=1)
    client_step.perform(tmp_path, steps.request(step, {}), lambda *_: (None, {}))
    assert hello_of(tmp_path, 1).last_step == 7


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
    record = hello_of(tmp_path, 0).to_record()
    arrays = {name: value for name, value in record.items() if isinstance(value, np.ndarray)}
    assert arrays.pop("census.shape").tolist() == [2, 3]
    assert arrays.keys() == {"census.total", "census.square"}
    assert all(sums.shape == (3,) for sums in arrays.values())
    assert not any(isinstance(value, bytes | float) for value in record.values())
    sent = np.concatenate([record["census.total"], record["census.square"]])
    assert not np.isin(sent.astype(np.float32), X).any()


def wrong(**changes):
    return lambda record: record | {name.replace("__", "."): v for name, v in changes.items()}


MALFORMED = {
    "a number": wrong(client=-1),
    "a text": wrong(jaxfed=1),
    "a long text": wrong(config="x" * 101),
    "more labels than examples": wrong(census__labeled=7),
    "sums without squares": wrong(census__square=np.zeros(0)),
    "a shape of other numbers": wrong(census__shape=np.ones(2)),
    "a shape of many axes": wrong(census__shape=np.ones(9, np.int64)),
    "an empty axis": wrong(census__shape=np.zeros(2, np.int64)),
    "a step that no run reaches": wrong(last_step=2**60),
    "no shape": wrong(census__shape=3),
    "sums of other features": wrong(census__total=np.ones(2)),
    "sums of another type": wrong(census__total=np.ones(3, np.float32)),
    "sums that are not finite": wrong(census__square=np.array([0, np.nan, 0])),
    "columns that are no list": wrong(columns='"abc"'),
    "columns that are no texts": wrong(columns="[1, 2, 3]"),
    "more columns than there are": wrong(columns='["a", "b", "c", "d"]'),
    "names without an end": wrong(columns=f"[{' ' * 10**7}]"),
    "nothing": lambda record: {},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_hello_is_a_bad_message(tmp_path, case):
    record = MALFORMED[case](hello_of(tmp_path, 1).to_record())
    with pytest.raises(BadMessage):
        hello.from_record(record)


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
        example=[X.dtype.name, *X.shape[1:]],
    )
    data = {1: hello_of(tmp_path / "b", 1).data}
    clients = {5: client_of(tmp_path / "a", 0), 6: client_of(tmp_path / "b", 1, **changes)}
    with caplog.at_level(logging.WARNING, logger="absl"):
        found = admitted(clients, expected, data=data)
    assert found.nodes == {0: 5}
    assert found.refused.keys() == {6}
    assert re.fullmatch(reason, found.refused[6])
    assert [record.getMessage() for record in caplog.records] == [
        f"refused node 6: {found.refused[6]}"
    ]


def test_two_nodes_with_one_number_are_both_refused(tmp_path):
    clients = {node: client_of(tmp_path / str(node), 0 if node < 7 else 1) for node in (5, 6, 7)}
    found = admitted(clients)
    assert found.nodes == {1: 7}
    assert found.refused == {
        5: "client number 0 is also claimed by node 6",
        6: "client number 0 is also claimed by node 5",
    }


def test_a_number_stays_with_the_node_that_has_it(tmp_path):
    clients = {node: client_of(tmp_path / str(node), 0) for node in (5, 6)}
    found = admitted(clients, asked=[6], nodes={0: 5})
    assert found.refused == {6: "client number 0 is that of node 5"}
    found = admitted(clients, nodes={0: 5})
    assert (found.nodes, found.refused.keys()) == ({0: 5}, {6})


def test_a_client_may_come_back_with_another_node(tmp_path):
    """A SuperNode that starts again without a key has a new number; its old one is gone."""
    assert admitted({6: client_of(tmp_path / "a", 0)}, nodes={0: 5}).nodes == {0: 6}


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


def gathered(network, number, tell=lambda line: None, *, data=None, **options):
    expected = Expected(number=number, config=CONFIG, **options)
    found = clients_of(network, expected, deadline=10, retries=0, data=data or {})
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
