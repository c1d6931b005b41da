"""Requests to clients and their replies, in bounded time: who answered, who is lost, and why.

Every wait ends at the deadline. A client that is silent, crashed, gone, or sends anything but the expected
reply is lost for this step; the others' replies count, and it is asked again in the next step. Replies are
sorted by client, so sums do not depend on the order of arrival.

States of clients (see `steps`): a client goes on from its state after the last step whose reply counted.
Clients drop states from before those of `committed` with their next request: set it when a checkpoint with
`states` and `next_step` is on disk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from absl import logging

from jaxfed.flower.messages import records, steps
from jaxfed.flower.messages.records import BadMessage, Record
from jaxfed.flower.messages.steps import Arrival, Failure, Network, Step

Read = Callable[[int, Record], Any]  # client, content -> what `replies` holds


class TooFewClients(RuntimeError):
    """Fewer clients answered than the quorum asks for; the text is one line."""


class _StepFailed(BadMessage):
    def __init__(self, failure: Failure) -> None:
        super().__init__(f"its step failed: {failure}")
        self.kind = failure.kind


class Lost(NamedTuple):
    """A client without a usable reply; `kind` is the class of the exception that it reports, or ""."""

    reason: str
    kind: str = ""


@dataclass
class Answers:
    """One step, under way or ended: usable replies by client, at the end in ascending order, and the lost.

    `seconds` end with the last reply or the deadline. `bytes_up` are of the content of usable replies,
    `bytes_down` of all requests. `waiting` has the client of each open request.
    """

    step: str
    round: int
    requests: dict[int, Record]
    started: float
    replies: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, Lost] = field(default_factory=dict)
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    waiting: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The round and the step, for a line."""
        return f"round {self.round}, {self.step}"

    def enough(self, quorum: float) -> Answers:
        """Return these answers if this share of the asked clients has answered, and one at least."""
        asked = len(self.requests)
        needed = max(1, math.ceil(quorum * asked - 1e-9))
        if len(self.replies) >= needed:
            return self
        missing = "; ".join(f"client {c} ({lost.reason})" for c, lost in self.lost.items())
        raise TooFewClients(
            f"{self.label}: {len(self.replies)} of {asked} clients answered, {needed} are needed; missing: "
            f"{missing or 'all'}; the run stops; the same command continues it"
        )


@dataclass
class Exchange:
    """The server's side of all steps of a run.

    Attributes:
        network: reaches the nodes.
        nodes: the node of each client; may be changed between steps.
        run: name of the run: letters, digits, `_`, `.` and `-`.
        deadline: seconds until a step ends, whoever is missing.
        next_step: number of the next step. A server that starts again must begin above all numbers that it
            has used before.
        states: of each client, the last counted step that made a state.
        committed: of each client, the earliest state that the server may come back to.
        poll: seconds between two looks at the network; `clock` and `sleep` are for tests.
    """

    network: Network
    nodes: Mapping[int, int]
    run: str
    deadline: float
    next_step: int = 1
    states: dict[int, int] = field(default_factory=dict)
    committed: Mapping[int, int] = field(default_factory=dict)
    poll: float = 0.1
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def ask(
        self,
        name: str,
        messages: Mapping[int, Record],
        *,
        round: int,
        read: Read = lambda client, content: content,
        continues: bool = True,
    ) -> Answers:
        """Send each client its content, and wait for all replies or the deadline.

        Args:
            name: of the step.
            messages: content for each client that is asked.
            round: number of the round; 0 before the first.
            read: checks a reply's content and converts it; `records.BadMessage` from it loses the client.
            continues: clients go on from their states, and make new ones; a registration does not.
        """
        number, self.next_step = self.next_step, self.next_step + 1
        after, oldest = (self.states, self.committed) if continues else ({}, {})
        asked = Answers(name, round, {}, self.clock())
        for client in sorted(messages):
            counts = len(messages), after.get(client, 0), oldest.get(client, 0)
            step = Step(self.run, number, name, round, client, *counts)
            asked.requests[client] = steps.request(step, messages[client])
        sent = [(self.nodes[client], record) for client, record in asked.requests.items()]
        identifiers = self.network.send(sent, self.deadline)
        for client, identifier in zip(asked.requests, identifiers, strict=True):
            if identifier:
                asked.waiting[identifier] = client
                asked.bytes_down += records.num_bytes(messages[client])
            else:
                self._lose(asked, client, Lost("its node is not connected"))
        while asked.waiting:
            for arrival in self.network.receive(list(asked.waiting)):
                self._take(asked, arrival, read)
            left = asked.started + self.deadline - self.clock()
            if asked.waiting and left <= 0:
                for client in sorted(asked.waiting.values()):
                    self._lose(asked, client, Lost(f"no reply within {self.deadline:g} s"))
                break
            if asked.waiting:
                self.sleep(min(self.poll, left))
        if continues:
            self.states |= dict.fromkeys(asked.replies, number)
        asked.replies = dict(sorted(asked.replies.items()))
        asked.lost = dict(sorted(asked.lost.items()))
        asked.seconds = self.clock() - asked.started
        return asked

    def _take(self, asked: Answers, arrival: Arrival, read: Read) -> None:
        """Count a reply, or lose a client."""
        client = asked.waiting.pop(arrival.reply_to, None)
        if client is None:  # a second reply to one request
            logging.warning("%s: ignored a repeated reply", asked.label)
        elif arrival.record is None:
            self._lose(asked, client, Lost(arrival.problem))
        else:
            try:
                content = self._content(asked, client, arrival.node, arrival.record)
                asked.replies[client] = read(client, content)
                asked.bytes_up += records.num_bytes(content)
            except BadMessage as error:
                self._lose(asked, client, Lost(str(error), getattr(error, "kind", "")))

    def _content(self, asked: Answers, client: int, node: int, record: Record) -> Record:
        """Content of a reply to this step by the node that was asked."""
        if node != self.nodes[client]:
            raise BadMessage(f"node {node} replied in place of node {self.nodes[client]}")
        if failure := steps.failure_of(record):
            raise _StepFailed(failure)
        if steps.step_of(record) != steps.step_of(asked.requests[client]):
            raise BadMessage("its reply belongs to another step or client")
        return steps.content_of(record)

    def _lose(self, asked: Answers, client: int, lost: Lost) -> None:
        asked.lost[client] = lost
        logging.warning("%s: lost client %d: %s", asked.label, client, lost.reason)
