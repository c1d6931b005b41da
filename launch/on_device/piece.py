"""A piece of what is done on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL_SECONDS = 20.0  # most of them are imports


@dataclass(frozen=True)
class Piece:
    """Done in one process, or not at all.

    Attributes:
        name: of its file of results.
        seconds: that it takes at most, about; it is not begun with less time left.
        about: in a few words.
        measure: (whether small, the device's rates as far as they are known) -> results, to be written as
            JSON. "errors" among them is how many parts failed.
        command: (folder of all results, whether small) -> a command line in place of `measure`; one that is
            stopped goes on from where it was.
        result: (that folder, whether small) -> what a command has come to, as `measure` returns it.
        small: what a small run does in place of `about`, in a few words; empty: less of the same.
    """

    name: str
    seconds: float
    about: str
    measure: Callable[[bool, dict[str, float]], dict[str, Any]] | None = None
    command: Callable[[Path, bool], list[str]] | None = None
    result: Callable[[Path, bool], dict[str, Any]] | None = None
    small: str = ""

    def wants(self, small: bool) -> float:
        """Seconds that it takes at most, about."""
        return min(self.seconds, SMALL_SECONDS) if small else self.seconds

    def does(self, small: bool) -> str:
        """What it does, in a few words."""
        return (self.small or f"{self.about}, next to nothing of it") if small else self.about
