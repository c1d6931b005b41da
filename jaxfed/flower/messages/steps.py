"""Steps: what every request and reply carries beside its content, and the network between the two.

    step.*      of which run, the number and name of the step, round, client, and the client's states
    content.*   what the method sends
    error.*     in a reply, instead of content: why there is none

A step is one request to each of some clients. Its number is used once in a run, also by a server that was
started again, so a reply to an earlier step is recognized, and a repeated request is too.

A client stores its state under the number of the step that made it. A request names the step whose state it
continues from (`after`): the last one that the server counted. A reply that came too late is therefore as if
it had never been, and a server that goes on from its checkpoint continues from the states of that time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage, Record, Value

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # also a name of a folder


class Step(NamedTuple):
    """The identity of a request.

    Attributes:
        run: name of the run.
        number: from 1 on; a later step has a greater number.
        name: of the stage ("train").
        round: from 1 on; 0 before the first.
        client: number of the addressed client.
        cohort: number of the clients that are asked in this step.
        after: number of the step whose state the client continues from; 0: without a state.
        oldest: states of earlier steps are not needed any more; 0: keep all.
    """

    run: str
    number: int
    name: str
    round: int
    client: int
    cohort: int = 1
    after: int = 0
    oldest: int = 0


class Failure(NamedTuple):
    """A client's reason for sending no content: a class of exception, a key of a config, perhaps a text."""

    kind: str
    key: str = ""
    text: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.kind, self.key, self.text)))


def request(step: Step, content: Mapping[str, Value]) -> Record:
    """Put a step in front of the content of a request, or of a reply to it."""
    head = records.prefixed(records.packed(step), "step")
    return head | records.prefixed(content, "content")


def failed(step: Step | None, failure: Failure) -> Record:
    """Reply to a step, None if it could not be read, without content."""
    head = {} if step is None else request(step, {})
    return head | records.prefixed(records.packed(failure), "error")


def step_of(record: Mapping[str, Value]) -> Step:
    """Read the step of a request or a reply."""
    step = records.unpacked(Step, records.part(record, "step"))
    if not (_NAME.fullmatch(step.run) and _NAME.fullmatch(step.name)):
        raise BadMessage("the name of a step or of its run is malformed")
    if step.number < 1 or min(step.round, step.client, step.cohort, step.after, step.oldest) < 0:
        raise BadMessage("a number of a step is below 0")
    return step


def content_of(record: Mapping[str, Value]) -> Record:
    """Return the content of a request or a reply."""
    return records.part(record, "content")


def failure_of(record: Mapping[str, Value]) -> Failure | None:
    """Read why a reply has no content; None if it has."""
    error = records.part(record, "error")
    if not error:
        return None
    return Failure(*map(records.one_line, records.unpacked(Failure, error)))


class Arrival(NamedTuple):
    """A reply, or news that there will be none: without a record, and with a problem, one line.

    The request's identifier alone says whose it is, because news of a lost node come from the network.
    """

    reply_to: str
    node: int
    record: Record | None
    problem: str = ""


class Network(Protocol):
    """Messages between one server and numbered nodes: Flower's grid (`grid_messages`), or a test's."""

    def nodes(self) -> list[int]:
        """List the nodes that are connected now."""

    def send(self, requests: Sequence[tuple[int, Record]], seconds: float) -> list[str]:
        """Send (node, record) each, whose reply is worthless after `seconds`.

        Returns an identifier of each request, "" for one that cannot be delivered.
        """

    def receive(self, identifiers: Iterable[str]) -> list[Arrival]:
        """Fetch, without waiting, what has arrived for these requests."""
