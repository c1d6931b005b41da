"""A piece of the work on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL_SECONDS = 20.0  # most of them are imports


@dataclass(frozen=True)
class Piece:
    """A unit of work in one process.

    Attributes:
        name: of its result file.
        seconds: approximate maximum; it is not started with less time left.
        about: short description.
        measure: (whether small, the device's known rates) -> results, to be written as JSON. "errors" is
            the number of failed parts.
        command: (folder of all results, whether small) -> a command line in place of `measure`; a stopped
            command resumes.
        result: (that folder, whether small) -> results of a command, as `measure` returns them.
    """

    name: str
    seconds: float
    about: str
    measure: Callable[[bool, dict[str, float]], dict[str, Any]] | None = None
    command: Callable[[Path, bool], list[str]] | None = None
    result: Callable[[Path, bool], dict[str, Any]] | None = None

    def wants(self, small: bool) -> float:
        """Approximate maximum of seconds."""
        return min(self.seconds, SMALL_SECONDS) if small else self.seconds

    def does(self, small: bool) -> str:
        """Short description of the work."""
        return f"{self.about}, next to nothing of it" if small else self.about
