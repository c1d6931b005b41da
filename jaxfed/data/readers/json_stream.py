"""Read a large JSON object member by member, with only one member in memory at a time.

with file.open() as text:
    stream = JsonStream(text)
    for key in stream.members():        # keys of the object at the current position
        value = stream.value()          # or stream.members() again, for a nested object
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

_CHUNK = 1 << 24  # smallest number of characters to read at a time


class JsonStream:
    """A reading position in a JSON text; errors are `json.JSONDecodeError`."""

    def __init__(self, text: TextIO, *, chunk: int = _CHUNK) -> None:
        """Start at the beginning of the text; `chunk` characters are read at a time, or more if needed."""
        self._text, self._chunk = text, chunk
        self._buffer, self._place = "", 0
        self._decoder = json.JSONDecoder()

    def members(self) -> Iterator[str]:
        """Yield the keys of the object at this position; read each value before the next key."""
        self._take("{")
        if self._next() == "}":
            self._take("}")
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise self._error("a key in quotes")
            self._take(":")
            yield key
            if self._next() == "}":
                self._take("}")
                return
            self._take(",")

    def value(self) -> Any:
        """Return the whole value at this position, as `json.loads` does."""
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._place)
            except json.JSONDecodeError:
                if not self._fill():
                    raise
                continue
            length = end - self._place  # a number that ends with the buffer, or at a dot, may go on
            if self._buffer[end : end + 1] not in ("", ".", "e", "E") or not self._fill():
                self._place += length
                return value

    def end(self) -> None:
        """Check that only whitespace is left."""
        if self._next():
            raise self._error("the end")

    def _take(self, character: str) -> None:
        if self._next() != character:
            raise self._error(repr(character))
        self._place += 1

    def _next(self) -> str:
        """Move to the next character that is not a space and return it; "" at the end."""
        while True:
            while self._place < len(self._buffer) and self._buffer[self._place].isspace():
                self._place += 1
            if self._place < len(self._buffer):
                return self._buffer[self._place]
            if not self._fill():
                return ""

    def _fill(self) -> bool:
        """Read more; each time doubles the buffer, so long values take linear time."""
        kept = self._buffer[self._place :]
        more = self._text.read(max(self._chunk, len(kept)))
        self._buffer, self._place = kept + more, 0
        return bool(more)

    def _error(self, expected: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(f"{expected} expected", self._buffer, self._place)
