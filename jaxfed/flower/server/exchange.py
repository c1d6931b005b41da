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
from dataclasses import dataclass, field, replace
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
    """A client without a usable reply.

    Attributes:
        reason: one line.
        after_s: seconds from the request until it was lost.
        since: the round and step since which it has not answered.
        missing_s: seconds since the request of that step.
        kind: class of the exception that the client reports ("StateLost"); "" if it reports none.
    """

    reason: str
    after_s: float
    since: str
    missing_s: float
    kind: str = ""


@dataclass(frozen=True)
class Answers:
    """The outcome of one step.

    Attributes:
        step: name of the step.
        round: its round.
        replies: usable replies by client, in ascending order.
        lost: the other clients.
        seconds: from the first request to the last reply, or to the deadline.
        arrived_s: seconds until each usable reply had arrived.
        bytes_up: content of all usable replies (names, steps and the network's own overhead not counted).
        bytes_down: content of all requests, repeated ones included.
        number: of the step.
        after: the step whose state each client continued from; empty without `continues`.
    """

    step: str
    round: int
    replies: dict[int, Any]
    lost: dict[int, Lost]
    seconds: float
    arrived_s: dict[int, float]
    bytes_up: int
    bytes_down: int
    number: int
    after: dict[int, int]

    def enough(self, quorum: float, *, then: str = "") -> Answers:
        """Return these answers if there are enough of them.

        Args:
            quorum: share of the asked clients that must have answered; one client at least.
            then: what happens next if they have not, for the error's text.

        Raises:
            TooFewClients: says who is missing, since when, why, and what follows.
        """
        asked = len(self.replies) + len(self.lost)
        needed = max(1, math.ceil(quorum * asked - 1e-9))
        if len(self.replies) >= needed:
            return self
        missing = "; ".join(
            f"client {client} since {lost.since}, {lost.missing_s:.0f} s ago ({lost.reason})"
            for client, lost in self.lost.items()
        )
        text = (
            f"{_label(self.round, self.step)}: {len(self.replies)} of {asked} clients answered, "
            f"{needed} are needed; missing: {missing or 'all'}"
        )
        raise TooFewClients(f"{text}; {then}" if then else text)


@dataclass
class _Asking:
    """One step under way."""

    name: str
    round: int
    requests: dict[int, Record]
    read: Read
    started: float
    deadline: float
    waiting: dict[str, int] = field(default_factory=dict)  # request identifier -> client
    tries: dict[int, int] = field(default_factory=dict)
    replies: dict[int, Any] = field(default_factory=dict)
    arrived_s: dict[int, float] = field(default_factory=dict)
    lost: dict[int, Lost] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0


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
        states: Mapping[int, int] | None = None,
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
            states: of a checkpoint.
            poll: seconds between two looks at the network.
            clock: seconds that never go back.
            sleep: waits for some seconds.
        """
        self.nodes = dict(nodes)
        self.next_step = first_step
        self.states = dict(states or {})
        self._committed = dict(self.states)
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
        deadline: float | None = None,
    ) -> Answers:
        """Send each client its content, and wait for all replies or the deadline.

        Args:
            name: of the step.
            messages: content for each client that is asked.
            round: number of the round; 0 before the first.
            read: checks a reply's content and converts it; `records.BadMessage` from it loses the client.
            continues: clients go on from their states, and make new ones.
            deadline: seconds, instead of the exchange's.

        Raises:
            KeyError: a client without a node.
        """
        number, self.next_step = self.next_step, self.next_step + 1
        after = {client: self.states.get(client, 0) for client in messages} if continues else {}
        requests = {
            client: request(
                Step(
                    *(self._run, number, name, round, client),
                    after=after.get(client, 0),
                    oldest=self._committed.get(client, 0) if continues else 0,
                ),
                messages[client],
            )
            for client in sorted(messages)
        }
        deadline = self._deadline if deadline is None else deadline
        asking = _Asking(name, round, requests, read, self._clock(), deadline)
        self._send(asking, list(asking.requests))
        end = asking.started + deadline
        while asking.waiting:
            for arrival in self._network.receive(list(asking.waiting)):
                self._take(asking, arrival)
            left = end - self._clock()
            if asking.waiting and left <= 0:
                for client in sorted(asking.waiting.values()):
                    self._lose(asking, client, f"no reply within {deadline:g} s")
                break
            if asking.waiting:
                self._sleep(min(self._poll, left))
        if continues:
            self.states |= dict.fromkeys(asking.replies, number)
        return Answers(
            step=name,
            round=round,
            replies=dict(sorted(asking.replies.items())),
            lost=dict(sorted(asking.lost.items())),
            seconds=self._clock() - asking.started,
            arrived_s=dict(sorted(asking.arrived_s.items())),
            bytes_up=asking.bytes_up,
            bytes_down=asking.bytes_down,
            number=number,
            after=after,
        )

    def lose(self, answers: Answers, client: int, reason: str) -> Answers:
        """Take back a reply that turned out to be unusable; its state does not count either."""
        if client in answers.after and self.states.get(client) == answers.number:
            self.states[client] = answers.after[client]
        lost = self._missing_client(
            client, _label(answers.round, answers.step), answers.seconds, reason
        )
        replies = {each: reply for each, reply in answers.replies.items() if each != client}
        return replace(
            answers, replies=replies, lost=dict(sorted({**answers.lost, client: lost}.items()))
        )

    def commit(self, states: Mapping[int, int] | None = None) -> None:
        """Let clients drop states from before these, by default the present ones.

        The server will not come back to earlier ones.
        """
        self._committed = dict(self.states if states is None else states)

    def _send(self, asking: _Asking, clients: list[int]) -> None:
        seconds = asking.deadline - (self._clock() - asking.started)
        outgoing = [
            Outgoing(self.nodes[client], asking.requests[client], seconds, str(asking.round))
            for client in clients
        ]
        identifiers = self._network.send(outgoing)
        for client, identifier in zip(clients, identifiers, strict=True):
            if identifier:
                asking.waiting[identifier] = client
                asking.tries[client] = asking.tries.get(client, 0) + 1
                asking.bytes_down += records.num_bytes(content_of(asking.requests[client]))
            else:
                self._lose(asking, client, "its node is not connected")

    def _take(self, asking: _Asking, arrival: Arrival) -> None:
        """Count a reply, send a request again, or lose a client."""
        client = asking.waiting.pop(arrival.reply_to, None)
        if client is None:  # a second reply to one request
            logging.warning("%s: ignored a repeated reply", _label(asking.round, asking.name))
            return
        if arrival.record is None:
            is_time_left = self._clock() - asking.started < asking.deadline
            if arrival.may_retry and asking.tries[client] <= self._retries and is_time_left:
                logging.warning(
                    "%s: client %d: %s; sent again",
                    *(_label(asking.round, asking.name), client, arrival.problem),
                )
                self._send(asking, [client])
            else:
                self._lose(asking, client, arrival.problem)
            return
        try:
            content = self._content(asking, client, arrival.node, arrival.record)
            value = asking.read(client, content)
        except BadMessage as error:
            self._lose(asking, client, str(error), getattr(error, "kind", ""))
            return
        asking.replies[client] = value
        asking.arrived_s[client] = self._clock() - asking.started
        asking.bytes_up += records.num_bytes(content)
        if client in self._missing:
            _, since = self._missing.pop(client)
            logging.info(
                "%s: client %d answers again; it was missing since %s",
                *(_label(asking.round, asking.name), client, since),
            )

    def _content(self, asking: _Asking, client: int, node: int, record: Record) -> Record:
        """Content of a reply to this step by the node that was asked.

        Raises:
            BadMessage: it is another's, another step's, malformed, or says that the step failed.
        """
        if node != self.nodes[client]:
            raise BadMessage(f"node {node} replied in place of node {self.nodes[client]}")
        failure = failure_of(record)
        if failure is not None:
            raise _StepFailed(failure)
        if step_of(record) != step_of(asking.requests[client]):
            raise BadMessage("its reply belongs to another step or client")
        return content_of(record)

    def _lose(self, asking: _Asking, client: int, reason: str, kind: str = "") -> None:
        after_s = self._clock() - asking.started
        label = _label(asking.round, asking.name)
        lost = self._missing_client(client, label, after_s, reason)
        asking.lost[client] = lost._replace(kind=kind)

    def _missing_client(self, client: int, label: str, after_s: float, reason: str) -> Lost:
        """Remember and log that a client has not answered a step that began `after_s` seconds ago."""
        now = self._clock()
        began, since = self._missing.setdefault(client, (now - after_s, label))
        logging.warning(
            "%s: lost client %d after %.0f s: %s; missing since %s",
            *(label, client, after_s, reason, since),
        )
        return Lost(reason, after_s, since, now - began)


def _label(round_: int, step: str) -> str:
    return f"round {round_}, {step}"
