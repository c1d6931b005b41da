"""Steps: what every request and reply carries beside its content.

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
from collections.abc import Mapping
from typing import NamedTuple

from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage, Record, Value

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # also a name of a folder
_LONGEST_ERROR = 300  # characters


class Step(NamedTuple):
    """The identity of a request.

    Attributes:
        run: name of the run.
        number: from 1 on; a later step has a greater number.
        name: of the stage ("train").
        round: from 1 on; 0 before the first.
        client: number of the addressed client.
        after: number of the step whose state the client continues from; 0: without a state.
        oldest: states of earlier steps are not needed any more; 0: keep all.
    """

    run: str
    number: int
    name: str
    round: int
    client: int
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
    head: Mapping[str, Value] = step._asdict()
    return records.prefixed(head, "step") | records.prefixed(content, "content")


def failed(step: Step | None, failure: Failure) -> Record:
    """Reply to a step, None if it could not be read, without content."""
    head = {} if step is None else request(step, {})
    return head | records.prefixed(failure._asdict(), "error")


def step_of(record: Mapping[str, Value]) -> Step:
    """Read the step of a request or a reply."""
    head = records.part(record, "step")
    if head.keys() != set(Step._fields):
        raise BadMessage("the message does not say to which step it belongs")
    step = Step(
        run=records.text(head, "run"),
        number=records.whole_number(head, "number", least=1),
        name=records.text(head, "name"),
        **{
            name: records.whole_number(head, name)
            for name in ("round", "client", "after", "oldest")
        },
    )
    for name in ("run", "name"):
        if not _NAME.fullmatch(getattr(step, name)):
            raise BadMessage(f"the {name} of a step is malformed")
    if not step.oldest <= step.after < step.number and step.after:
        raise BadMessage("a step continues from a state that is not an earlier step's")
    return step


def content_of(record: Mapping[str, Value]) -> Record:
    """Return the content of a request or a reply."""
    return records.part(record, "content")


def failure_of(record: Mapping[str, Value]) -> Failure | None:
    """Read why a reply has no content; None if it has."""
    error = records.part(record, "error")
    if not error:
        return None
    return Failure(*(one_line(records.text(error, name)) for name in Failure._fields))


def one_line(text: str) -> str:
    """Make a text from elsewhere safe to print: one line, no control characters, not too long."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(shown.split())[:_LONGEST_ERROR]
