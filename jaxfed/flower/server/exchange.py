"""Requests to clients and their replies, in bounded time: who answered, who is lost, and why.

    exchange = Exchange(network, nodes={0: 17, 1: 23}, run="digits", deadline=600, retries=1)
    answers = exchange.ask("train", {0: content, 1: content}, round=3, read=read_update)
    answers.enough(0.5, then="the run stops; the same command resumes it")

Every wait ends at the deadline. A client that is silent, crashed, gone, or sends anything but the expected
reply is lost for this step; the others' replies count, and it is asked again in the next step. Replies are
sorted by client, so sums do not depend on the order of arrival.

States of clients (see `steps`): with `continues=True` a client goes on from its state after the last step of
this kind whose reply was counted. `commit` lets clients drop, with their next request, the states that will
not be needed again; call it when a checkpoint with `states` and `next_step` is on disk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from absl import logging

from jaxfed.flower.messages import records
from jaxfed.flower.messages.network import Arrival, Network, Outgoing
from jaxfed.flower.messages.records import BadMessage, Record
from jaxfed.flower.messages.steps import Failure, Step, content_of, failure_of, request, step_of

Read = Callable[[int, Record], Any]  # client, content -> what `replies` holds


class TooFewClients(RuntimeError):
    """Fewer clients answered than the quorum asks for; the text is one line."""


class _StepFailed(BadMessage):
    """A reply that says that the client's step failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"its step failed: {failure}")
        self.kind = failure.kind


class Lost(NamedTuple):
    """A client without a usable reply, `after_s` seconds after the request.

    It has not answered since the round and step `since`, `missing_s` seconds ago. `kind` is the class of the
    exception that the client reports ("StateLost"), or "".
    """

    reason: str
    after_s: float
    since: str
    missing_s: float
    kind: str


@dataclass
class Answers:
    """One step, under way or ended: usable replies by client, at the end in ascending order, and the lost.

    `seconds` end with the last reply or the deadline, `arrived_s` with each usable reply. `bytes_up` are of
    the content of usable replies, `bytes_down` of all requests, repeated ones included; names, steps and the
    network's own overhead are not counted. `waiting` has the client of each request without a reply.
    """

    step: str
    round: int
    requests: dict[int, Record]
    read: Read
    started: float
    replies: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, Lost] = field(default_factory=dict)
    seconds: float = 0.0
    arrived_s: dict[int, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The round and the step, for a line."""
        return f"round {self.round}, {self.step}"

    def enough(self, quorum: float, *, then: str = "") -> Answers:
        """Return these answers if this share of the asked clients has answered, and one at least.

        Raises:
            TooFewClients: says who is missing, since when, why, and `then`, what follows.
        """
        asked = len(self.requests)
        needed = max(1, math.ceil(quorum * asked - 1e-9))
        if len(self.replies) >= needed:
            return self
        missing = "; ".join(
            f"client {client} since {lost.since}, {lost.missing_s:.0f} s ago ({lost.reason})"
            for client, lost in self.lost.items()
        )
        text = (
            f"{self.label}: {len(self.replies)} of {asked} clients answered, {needed} are needed; missing: "
            f"{missing or 'all'}"
        )
        raise TooFewClients(f"{text}; {then}" if then else text)


class Exchange:
    """The server's side of all steps of a run.

    Attributes:
        nodes: the node of each client; may be changed between steps.
        next_step: number of the next step. A server that starts again must begin above all numbers that it
            has used before.
        states: of each client, the last counted step that made a state.
    """

    def __init__(
        self,
        network: Network,
        nodes: Mapping[int, int],
        *,
        run: str,
        deadline: float,
        retries: int = 1,
        first_step: int = 1,
        poll: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare a run's steps.

        Args:
            network: `grid_messages.GridNetwork(grid)`, or a test's.
            nodes: the node of each client.
            run: name of the run: letters, digits, `_`, `.` and `-`.
            deadline: seconds until a step ends, whoever is missing; repetitions included.
            retries: repetitions of a request whose client process crashed.
            first_step: number of the first step.
            poll: seconds between two looks at the network; `clock` and `sleep` are for tests.
        """
        self.nodes = dict(nodes)
        self.next_step = first_step
        self.states: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._network, self._run = network, run
        self._deadline, self._retries, self._poll = deadline, retries, poll
        self._clock, self._sleep = clock, sleep
        self._missing: dict[int, tuple[float, str]] = {}

    def ask(
        self,
        name: str,
        messages: Mapping[int, Record],
        *,
        round: int,
        read: Read = lambda client, content: content,
        continues: bool = False,
    ) -> Answers:
        """Send each client its content, and wait for all replies or the deadline.

        Args:
            name: of the step.
            messages: content for each client that is asked.
            round: number of the round; 0 before the first.
            read: checks a reply's content and converts it; `records.BadMessage` from it loses the client.
            continues: clients go on from their states, and make new ones.
        """
        number, self.next_step = self.next_step, self.next_step + 1
        after, oldest = (self.states, self._committed) if continues else ({}, {})
        requests = {}
        for client in sorted(messages):
            own = after.get(client, 0), oldest.get(client, 0)
            requests[client] = request(
                Step(self._run, number, name, round, client, *own), messages[client]
            )
        asked = Answers(name, round, requests, read, self._clock())
        self._send(asked, list(requests))
        while asked.waiting:
            for arrival in self._network.receive(list(asked.waiting)):
                self._take(asked, arrival)
            left = asked.started + self._deadline - self._clock()
            if asked.waiting and left <= 0:
                for client in sorted(asked.waiting.values()):
                    self._lose(asked, client, f"no reply within {self._deadline:g} s")
                break
            if asked.waiting:
                self._sleep(min(self._poll, left))
        if continues:
            self.states |= dict.fromkeys(asked.replies, number)
        for found in (asked.replies, asked.lost, asked.arrived_s):
            ordered = sorted(found.items())
            found.clear()
            found.update(ordered)
        asked.seconds = self._clock() - asked.started
        return asked

    def commit(self, states: Mapping[int, int] | None = None) -> None:
        """Let clients drop states from before these, by default the present ones.

        The server will not come back to earlier ones.
        """
        self._committed = dict(self.states if states is None else states)

    def _send(self, asked: Answers, clients: list[int]) -> None:
        seconds = self._deadline - (self._clock() - asked.started)
        identifiers = self._network.send(
            [
                Outgoing(self.nodes[client], asked.requests[client], seconds, str(asked.round))
                for client in clients
            ]
        )
        for client, identifier in zip(clients, identifiers, strict=True):
            if identifier:
                asked.waiting[identifier] = client
                asked.tries[client] = asked.tries.get(client, 0) + 1
                asked.bytes_down += records.num_bytes(content_of(asked.requests[client]))
            else:
                self._lose(asked, client, "its node is not connected")

    def _take(self, asked: Answers, arrival: Arrival) -> None:
        """Count a reply, send a request again, or lose a client."""
        client = asked.waiting.pop(arrival.reply_to, None)
        if client is None:  # a second reply to one request
            logging.warning("%s: ignored a repeated reply", asked.label)
            return
        after_s = self._clock() - asked.started
        if arrival.record is None:
            if (
                arrival.may_retry
                and asked.tries[client] <= self._retries
                and after_s < self._deadline
            ):
                logging.warning(
                    "%s: client %d: %s; sent again", asked.label, client, arrival.problem
                )
                self._send(asked, [client])
            else:
                self._lose(asked, client, arrival.problem)
            return
        try:
            content = self._content(asked, client, arrival.node, arrival.record)
            asked.replies[client] = asked.read(client, content)
        except BadMessage as error:
            self._lose(asked, client, str(error), getattr(error, "kind", ""))
            return
        asked.arrived_s[client] = after_s
        asked.bytes_up += records.num_bytes(content)
        if client in self._missing:
            _, since = self._missing.pop(client)
            logging.info(
                "%s: client %d answers again; it was missing since %s", asked.label, client, since
            )

    def _content(self, asked: Answers, client: int, node: int, record: Record) -> Record:
        """Content of a reply to this step by the node that was asked."""
        if node != self.nodes[client]:
            raise BadMessage(f"node {node} replied in place of node {self.nodes[client]}")
        failure = failure_of(record)
        if failure is not None:
            raise _StepFailed(failure)
        if step_of(record) != step_of(asked.requests[client]):
            raise BadMessage("its reply belongs to another step or client")
        return content_of(record)

    def _lose(self, asked: Answers, client: int, reason: str, kind: str = "") -> None:
        """Remember and log that a client has not answered."""
        now = self._clock()
        after_s = now - asked.started
        began, since = self._missing.setdefault(client, (asked.started, asked.label))
        logging.warning(
            "%s: lost client %d after %.0f s: %s; missing since %s",
            *(asked.label, client, after_s, reason, since),
        )
        asked.lost[client] = Lost(reason, after_s, since, now - began, kind)
