"""Progress output of commands: a bar with an estimate on a terminal, plain lines elsewhere.

(In a notebook, too: Rich's own bar there needs ipywidgets, and warns without.)

Without a bar, progress within a step is printed if no line has been for `QUIET_SECONDS`.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NoReturn, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

QUIET_SECONDS = 20.0
_NO_EDGE = 1000  # characters


class _Console(Console):
    """Rich's console, except that a closed pipe raises an error instead of exit(1)."""

    def on_broken_pipe(self) -> NoReturn:
        """Called by Rich within its handler of the error."""
        error = sys.exc_info()[1]
        raise error if error is not None else BrokenPipeError


def _console() -> Console:
    """Console of standard output; in a file, a pipe or a notebook, tables have unlimited width."""
    console = _Console(highlight=False, soft_wrap=True, force_jupyter=False)
    if not console.is_terminal:
        console.width = _NO_EDGE
    return console


class Terminal:
    """A progress bar with lines above it, or lines alone; a context manager.

    Each command has a subclass with its own messages.
    """

    def __init__(self, total: int, doing: str, console: Console | None = None) -> None:
        self.console = console or _console()
        self.is_interactive = self.console.is_terminal
        left = TextColumn("left"), TimeRemainingColumn()
        self._bar = Progress(
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
            *(TimeElapsedColumn(), *left),
            console=self.console,
            disable=not self.is_interactive,
        )
        self._task: Any = self._bar.add_task(doing, total=total)
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def describe(self, doing: str) -> None:
        """Set the description of the current step, next to the bar."""
        self._bar.update(self._task, description=doing)

    def describe_part(self, part: str) -> None:
        """Show progress within the step until the next `describe`; without a bar only after a silence."""
        self._bar.update(self._task, description=part)
        if not self.is_interactive and time.monotonic() - self._last_line >= QUIET_SECONDS:
            self.say(part)

    def advance(self) -> None:
        """Count one step."""
        self._bar.advance(self._task)

    def completed(self, steps: int) -> None:
        """Set the number of completed steps."""
        self._bar.update(self._task, completed=steps)

    def say(self, text: str) -> None:
        """Print one line, above the bar if there is one."""
        self._last_line = time.monotonic()
        self.console.print(text, markup=False)
