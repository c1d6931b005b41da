"""Records through real messages of Flower, and the exchange over a grid that behaves as Flower's."""

import threading

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from jaxfed.flower.messages import grid_messages
from jaxfed.flower.messages.grid_messages import (
    GridNetwork,
    answered,
    from_record_dict,
    to_record_dict,
)
from jaxfed.flower.messages.records import BadMessage, encode

RECORDS = {
    "arrays": {"a": np.ones((2, 3), np.float32), "b": b"\0", "c": 1},
    "plain": {"c": 1, "d": "é", "e": 1.5, "f": True},
    "empty array": {"a": np.zeros((0, 2))},
    "nothing": {},
}


@pytest.fixture(autouse=True)
def task():
    """Messages are made within a task of Flower."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_comes_back_from_flowers_bytes(case):
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


class Grid:
    """Flower's, whose replies are these: content, an error, or an exception of the call."""

    def __init__(self, *replies):
        self.replies = replies

    def pull_messages(self, message_ids):
        (reply,) = (self.replies[int(each)] for each in message_ids)
        if isinstance(reply, Exception):
            raise reply
        request = Message(RecordDict(), 50, grid_messages.MESSAGE_TYPE, ttl=9.0)
        request.metadata.__dict__["_message_id"] = message_ids[0]
        return [Message(reply, reply_to=request)]


def test_replies_and_faults_are_told_apart():
    """In plain words, and an exception's text, which Flower sends, is in none."""
    errors = [Error(code, "ValueError: SECRET") for code in (2, 5, 8, 99)]
    good = to_record_dict({"total": 3})
    found = GridNetwork(Grid(good, *errors, RecordDict(), ValueError("no objects"), good)).receive(
        map(str, range(8))
    )
    assert [each.reply_to for each in found] == [str(number) for number in range(8)]
    assert found[0].record == found[7].record == {"total": 3}
    assert [each.problem for each in found[1:7]] == [
        "its process raised an error (code 2)",
        "its node went offline (code 5)",
        "its process crashed (code 8)",
        "the network reports an unknown error (code 99)",
        "the message has no head, or another record in place of a payload",
        "its reply is not a Flower message",
    ]


class Refusing:
    """A grid that finds every message too large, and whose SuperLink fails at one reply."""

    def push_messages(self, messages):
        return []

    def pull_messages(self, message_ids):
        raise httpx.HTTPStatusError("500", request=None, response=None)


def test_messages_too_large_are_not_delivered_and_a_reply_that_fails_costs_its_client_alone():
    assert GridNetwork(Refusing()).send([(5, {})] * 2, 9.0) == ["", ""]
    (arrival,) = GridNetwork(Refusing()).receive(["message 1"])
    assert (arrival.reply_to, arrival.problem) == ("message 1", "its reply is not a Flower message")


def test_a_reply_whose_payload_does_not_come_delays_no_other():
    """Flower hands a reply out when it is whole. Its node has one thread: its next reply waits."""
    is_whole, pushed = threading.Event(), iter([["0", "1"], [], ["2", "3"], []])

    class Delaying(Grid):
        def push_messages(self, messages):
            return next(pushed)

        def pull_messages(self, message_ids):
            assert message_ids[0] != "0" or is_whole.wait(30)
            return super().pull_messages(message_ids)

    network = GridNetwork(Delaying(*[to_record_dict({"a": number}) for number in range(4)]))
    found = [network.receive(network.send([(7, {}), (8, {})], 9.0)) for _ in range(2)]
    assert [[each.reply_to for each in replies] for replies in found] == [["1"], ["3"]]
    is_whole.set()
    network._pulls[7][1].result(30)  # of "0"
    assert [each.record for each in network.receive(["2"])] == [{"a": 2}]


class Waiting:
    """A grid whose nodes have answered all messages without content, and no other."""

    def __init__(self):
        self.pushed, self.pulled = [], []

    def push_messages(self, messages):
        self.pushed += messages
        return [f"{len(self.pushed)}.{each}" for each in range(len(messages))]

    def pull_messages(self, message_ids):
        self.pulled.append(list(message_ids))
        if message_ids != ["4.0", "4.1"]:
            return []
        request = Message(RecordDict(), 50, grid_messages.MESSAGE_TYPE, ttl=9.0)
        request.metadata.__dict__["_message_id"] = "4.1"
        return [Message(RecordDict(), reply_to=request)]


def test_a_message_without_content_follows_each_request_and_its_reply_is_fetched():
    grid = Waiting()
    network = GridNetwork(grid)
    assert network.send([(5, {"a": 1}), (6, {})], 9.0) == ["2.0", "2.1"]
    nodes = [(each.metadata.dst_node_id, each.metadata.message_type) for each in grid.pushed]
    assert nodes == [(5, "query"), (6, "query"), (5, "query.stay"), (6, "query.stay")]
    assert not grid.pushed[2].content
    for _ in range(2):
        assert network.receive(["2.0"]) == []
    assert grid.pulled == [["4.0", "4.1"], ["2.0"], ["4.0"], ["2.0"]]


def test_a_client_app_does_not_raise(tmp_path):
    """Flower would send the text of its exception."""

    def fails(request):
        raise ValueError("SECRET")

    for content in (to_record_dict({"a": 1}), RecordDict()):
        message = Message(content, 5, grid_messages.MESSAGE_TYPE, ttl=9.0)
        reply = from_record_dict(answered(message, fails).content)
        assert reply["error.kind"] in ("ValueError", "BadMessage")
        assert "SECRET" not in repr(reply)
