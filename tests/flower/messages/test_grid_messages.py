"""Records through real messages of Flower, and the exchange over a grid that behaves as Flower's."""

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from local_network import FAULTS, LocalNetwork

from jaxfed.flower.client import client_step
from jaxfed.flower.messages import grid_messages
from jaxfed.flower.messages.grid_messages import (
    GridNetwork,
    answered,
    from_record_dict,
    to_record_dict,
)
from jaxfed.flower.messages.records import BadMessage, encode
from jaxfed.flower.server.exchange import Exchange

SUPERLINK = 1
NODES = {0: 70, 1: 50}
RECORDS = {
    "arrays": {"a": np.ones((2, 3), np.float32), "b": b"\0", "c": 1},
    "plain": {"c": 1, "d": "é", "e": 1.5, "f": True},
    "empty array": {"a": np.zeros((0, 2))},
    "nothing": {},
}


class LocalGrid:
    """Flower's `Grid`: `push_messages`, `pull_messages` and `get_node_ids`.

    Args:
        clients: client apps by node, functions of a Message that return a Message.
        faults: as of `LocalNetwork`.
    """

    def __init__(self, clients, faults=None, clock=None):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, SUPERLINK, 1
        self._apps = dict(clients)
        self._requests = {}  # by identifier
        self._current = None
        self.network = LocalNetwork(
            {node: self._app_of(node) for node in self._apps}, faults=faults, clock=clock
        )

    def get_node_ids(self):
        return self.network.nodes()

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids):
        pulled = []
        for identifier in message_ids:
            request = self._requests[identifier]
            for event in self.network.due(identifier):
                if event.record == {}:
                    raise ValueError("a message without its objects")
                if event.record is None:
                    # The text of a client's exception, which nobody may print.
                    content = Error(event.code, "ValueError: SECRET")
                else:
                    content = to_record_dict(event.record)
                reply = Message(content, reply_to=request)
                reply.metadata.__dict__["_src_node_id"] = event.node
                pulled.append(reply)
        return pulled

    def _push(self, message):
        metadata = message.metadata
        assert metadata.message_type == "query"
        self._current = message
        record = from_record_dict(message.content)
        (identifier,) = self.network.send([(metadata.dst_node_id, record)], metadata.ttl)
        if identifier:
            metadata.__dict__["_message_id"] = identifier
            self._requests[identifier] = message
        return identifier

    def _app_of(self, node):
        def client(record):
            given = self._current.metadata
            head = given.dst_node_id, given.message_type
            request = Message(to_record_dict(record), *head, ttl=given.ttl)
            return from_record_dict(self._apps[node](request).content)

        return client


class Counter:
    """A client app that counts in its folder."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder

    def __call__(self, message):
        return answered(message, self.perform)

    def perform(self, request):
        own = request["step.client"]
        return client_step.perform(self.folder, request, self.compute, client=own)

    def compute(self, step, state, content):
        total = content["x"] + (0 if state is None else state["total"])
        return {"total": total}, {"total": total}


def deployment(folder, faults=None):
    grid = LocalGrid({node: Counter(folder / str(node)) for node in NODES.values()}, faults)
    clock = grid.network.clock
    exchange = Exchange(
        GridNetwork(grid), NODES, run="r", deadline=300, clock=clock, sleep=clock.sleep
    )
    return grid, exchange


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_comes_back_from_flowers_bytes(case):
    LocalGrid({})  # gives this process a task, as messages need
    record = RECORDS[case]
    message = Message(to_record_dict(record), 5, grid_messages.MESSAGE_TYPE, ttl=9.0)
    objects = get_all_nested_objects(message)
    assert len(objects) == (6 if case == "arrays" else 3)
    there = {name: item.deflate() for name, item in objects.items()}
    back = from_record_dict(inflate_object_from_contents(message.object_id, there).content)
    assert encode(back) == encode(record)


GOOD = to_record_dict(RECORDS["arrays"])
FOREIGN = {
    "nothing": RecordDict(),
    "no head": RecordDict({"head": ConfigRecord()}),
    "a text": RecordDict({"head": ConfigRecord({"head": "[]"})}),
    "metrics": RecordDict({"head": MetricRecord({"head": 1})}),
    "payload missing": RecordDict({"head": GOOD["head"]}),
    "payload of configs": RecordDict({"head": GOOD["head"], "payload": ConfigRecord()}),
    "payload of numpy": RecordDict(
        {"head": GOOD["head"], "payload": ArrayRecord({"payload": Array(np.zeros(25, np.uint8))})}
    ),
    "another payload": RecordDict(
        {"head": GOOD["head"], "payload": ArrayRecord({"x": GOOD["payload"]["payload"]})}
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_other_content_of_a_message_is_a_bad_message(case):
    with pytest.raises(BadMessage):
        from_record_dict(FOREIGN[case])


REASONS = {
    "killed": "its node went offline (code 5)",
    "crash": "its process crashed (code 8)",
    "crash after": "its process crashed (code 8)",
    "raise": "its process raised an error (code 2)",
    "late": "no reply within 300 s",
    "unreadable": "its reply is not a Flower message",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_have_plain_words(tmp_path, fault):
    """And an exception's text, which Flower sends, is in none."""
    _, exchange = deployment(tmp_path, {(50, 1): fault})
    answers = exchange.ask("count", {client: {"x": 3} for client in NODES}, round=1, continues=True)
    assert answers.replies[0] == {"total": 3}
    if fault in REASONS:
        assert answers.lost[1].reason == REASONS[fault]
    assert "SECRET" not in repr(answers)
    assert answers.seconds <= 300.2
    second = exchange.ask("count", {0: {"x": 4}}, round=2, continues=True)
    assert second.replies == {0: {"total": 7}}


class Refusing:
    """A grid that finds every message too large, or cannot reach its SuperLink."""

    def push_messages(self, messages):
        return []

    def pull_messages(self, message_ids):
        raise httpx.ConnectError("no route")


def test_messages_too_large_are_not_delivered_and_a_lost_superlink_is_an_error():
    LocalGrid({})
    assert GridNetwork(Refusing()).send([(5, {})] * 2, 9.0) == ["", ""]
    with pytest.raises(httpx.ConnectError):
        GridNetwork(Refusing()).receive(["message 1"])


def test_a_client_app_does_not_raise(tmp_path):
    """Flower would send the text of its exception."""
    LocalGrid({})

    def fails(request):
        raise ValueError("SECRET")

    for content in (to_record_dict({"a": 1}), RecordDict()):
        message = Message(content, 5, grid_messages.MESSAGE_TYPE, ttl=9.0)
        reply = from_record_dict(answered(message, fails).content)
        assert reply["error.kind"] in ("ValueError", "BadMessage")
        assert "SECRET" not in repr(reply)
