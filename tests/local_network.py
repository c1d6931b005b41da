"""A network within this process, with time that only tests move, and faults by plan.

`LocalNetwork` is what an exchange needs; `LocalGrid` (in test_grid_messages.py) is the same as Flower's grid.
Seconds and codes are those that were measured with Flower 1.42 over real processes.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from jaxfed.flower.messages.steps import Arrival, step_of

WORK_S = 1.0  # of a client, for a step
UNAVAILABLE, RAISED, OFFLINE, CRASHED = 3, 2, 5, 8  # Flower's error codes
NOTICED_S = {RAISED: 10.0, OFFLINE: 41.0, CRASHED: 70.0}

FAULTS = (
    "killed",  # the node is gone, and its client has not seen the request
    "crash",  # the client's process dies before it has computed
    "crash after",  # its state and reply are stored, but the process dies before it has replied
    "raise",
    "late",
    "duplicate",  # the reply arrives twice
    "delivered twice",  # the request does, and the second reply counts
    "garbage",
    "not finite",
    "other step",
    "other client",
    "other node",
    "twice with other content",
    "unreadable",
    "other form",
    "other type",
    "out of range",
)


CHANGED = ("not finite", "other form", "other type", "out of range")


def _changed(fault, name, value):
    """A value of a reply, spoilt if it is one of those that the fault is about."""
    if not name.startswith("content.") or not isinstance(value, np.ndarray):
        return value
    if fault == "out of range":
        return np.full_like(value, -3) if value.dtype == np.int32 else value
    if value.dtype.kind != "f":
        return value
    if fault == "other form":
        return np.zeros(value.size + 1, value.dtype)
    return value.astype(np.float64) if fault == "other type" else np.full_like(value, np.nan)


class FakeClock:
    """Seconds that pass only while somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert 0 < seconds < 1e6
        self.now += seconds


class Event(NamedTuple):
    """A reply's arrival, or an error code's."""

    at: float
    node: int
    record: dict | None
    code: int = 0


class LocalNetwork:
    """Nodes with client functions; each serves its requests one after another.

    Args:
        clients: client functions by node, of a request's record, returning a reply's.
        faults: by (node, step number) or (node, step, round), one of FAULTS, or several for a request that is
            sent again.
    """

    def __init__(self, clients, faults=None, clock=None):
        self.clients, self.clock = dict(clients), clock or FakeClock()
        self.faults = {
            key: [plan] if isinstance(plan, str) else list(plan)
            for key, plan in (faults or {}).items()
        }
        assert all(fault in FAULTS for plan in self.faults.values() for fault in plan)
        self.received = defaultdict(list)  # by node: all requests
        self._events = defaultdict(list)  # by identifier
        self._gone, self._free_at, self._sent = {}, defaultdict(float), 0
        self.revives = (
            False  # killed nodes are back once the network has noticed that they were gone
        )

    def revive(self, node):
        self._gone.pop(node, None)

    def nodes(self):
        if self.revives:
            self._gone = {node: at for node, at in self._gone.items() if self.clock() < at}
        return sorted(
            node for node in self.clients if self.clock() < self._gone.get(node, float("inf"))
        )

    def send(self, requests, seconds):
        return [self._send(node, record, seconds) for node, record in requests]

    def _send(self, node, record, seconds):
        assert seconds > 0
        if node not in self.nodes():
            return ""
        self._sent += 1
        identifier = f"message {self._sent}"
        self._events[identifier] = self._serve(node, record, seconds)
        return identifier

    def receive(self, identifiers):
        """The last request's reply first: a network keeps no order."""
        return [
            self._arrival(identifier, event)
            for identifier in reversed(identifiers)
            for event in self.due(identifier)
        ]

    def _arrival(self, identifier, event):
        if event.record is not None:
            return Arrival(identifier, event.node, event.record)
        return Arrival(identifier, 0, None, f"code {event.code}")

    def due(self, identifier):
        """Take the events of a request whose time has come."""
        events = self._events[identifier]
        due = [event for event in events if event.at <= self.clock()]
        self._events[identifier] = [event for event in events if event.at > self.clock()]
        return due

    def _serve(self, node, record, seconds):
        step = step_of(record)
        named = self.faults.get((node, step.name, step.round))
        plan = self.faults.get((node, step.number), []) if named is None else named
        fault = plan.pop(0) if plan else ""
        now = self.clock()
        if node in self._gone or fault == "killed":
            self._gone.setdefault(node, now + NOTICED_S[OFFLINE])
            return [Event(self._gone[node], 1, None, OFFLINE)]
        if fault == "crash":
            return [Event(now + NOTICED_S[CRASHED], 1, None, CRASHED)]
        if fault == "raise":
            return [Event(now + NOTICED_S[RAISED], 1, None, RAISED)]
        reply = self._reply(node, record, fault)
        if fault == "crash after":
            return [Event(now + NOTICED_S[CRASHED], 1, None, CRASHED)]
        if fault == "late":
            self._free_at[node] = now + seconds + 5
            return [Event(now + seconds + 0.5, 1, None, UNAVAILABLE)]
        self._free_at[node] = max(now, self._free_at[node]) + WORK_S
        sender = node + 1000 if fault == "other node" else node
        event = Event(self._free_at[node], sender, reply)
        if event.at > now + seconds:
            return [Event(now + seconds + 0.5, 1, None, UNAVAILABLE)]
        return [event, event] if fault == "duplicate" else [event]

    def _reply(self, node, record, fault):
        client = self.clients[node]
        self.received[node].append(record)
        reply = client(dict(record))
        if fault == "delivered twice":
            return client(dict(record))
        if fault == "twice with other content":
            return client({**record, "content.more": 1})
        if fault == "garbage":
            return {"content.x": 7, "noise": b"\0\1"}
        if fault == "unreadable":
            return {}
        if fault in CHANGED:
            return {name: _changed(fault, name, value) for name, value in reply.items()}
        if fault == "other step":
            return {**reply, "step.number": reply["step.number"] + 1}
        if fault == "other client":
            return {**reply, "step.client": reply["step.client"] + 1}
        return reply
