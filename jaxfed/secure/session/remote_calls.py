"""Call messages: steps and frames that a server sends to one client of a session in one exchange.

A message has the steps that the client is to take (`Call`), and the frames that it receives. It holds JSON
and frames, never code: a client runs only steps that it knows by name. Every part has its length in front of
it, 8 bytes, big-endian.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxfed.errors import ProtocolError

SETUP = "setup"  # the role of a client that joins a session
_SIZE = 8


class Call(NamedTuple):
    """One step of one of a client's objects.

    Attributes:
        number: of the object in its session.
        role: what kind of object it is.
        plan: what the object is made from, beside the client's own input.
        step: its method.
        arguments: of the method.
    """

    number: int
    role: str
    plan: dict[str, Any]
    step: str
    arguments: list[Any]


class CallMessage(NamedTuple):
    """The steps of one exchange, and the frames that have arrived for them."""

    calls: Sequence[Call]
    frames: Sequence[bytes]

    def to_bytes(self) -> bytes:
        """Encode the message."""
        text = json.dumps([_plain(list(call)) for call in self.calls], separators=(",", ":"))
        return packed([text.encode(), *self.frames])


def parsed_call_message(message: bytes) -> CallMessage:
    """Parse a call message."""
    try:
        text, *frames = parsed(message)
        calls = [Call(*map(_decoded, call)) for call in json.loads(text)]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ProtocolError("a malformed call message") from error
    for call in calls:
        kinds = zip(call, (int, str, dict, str, list), strict=True)
        if not all(type(value) is kind for value, kind in kinds):
            raise ProtocolError("a malformed call in a message")
    return CallMessage(calls, frames)


def packed(parts: Iterable[bytes | bytearray]) -> bytes:
    """Join parts, each with its length in front."""
    return b"".join(len(part).to_bytes(_SIZE, "big") + part for part in parts)


def parsed(message: bytes) -> list[bytes]:
    """Split what `packed` has joined."""
    parts, start = [], 0
    while start < len(message):
        begin = start + _SIZE
        start = begin + int.from_bytes(message[start:begin], "big")
        if begin > len(message) or start > len(message):
            raise ProtocolError(f"a message of {len(message)} bytes is cut short")
        parts.append(message[begin:start])
    return parts


def _plain(value: Any) -> Any:
    """JSON of plain values, slices, and mappings whose keys are numbers or strings."""
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop]}
    if isinstance(value, Mapping):
        return {"mapping": [[key, _plain(each)] for key, each in value.items()]}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _decoded(value: Any) -> Any:
    """Undo `_plain`; tuples are lists afterwards."""
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "slice":
        start, stop = content
        return slice(start, stop)
    if kind != "mapping":
        raise ValueError
    return {key: _decoded(each) for key, each in content}
