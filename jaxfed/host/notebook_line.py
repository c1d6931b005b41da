"""Progress in a notebook: one line of text that is updated in place, without ipywidgets.

The interface is that of `rich.progress.Progress`, as far as `Terminal` uses it.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

_SECONDS = 0.2  # between two updates of the page, at least


class NotebookLine:
    """`DESCRIPTION  DONE/TOTAL  SECONDS s`; the last text stays on the page."""

    def __init__(self) -> None:
        self._id = f"jaxfed-{uuid.uuid4().hex}"
        self._description, self._done, self._total = "", 0, 0
        self._started = self._shown = 0.0

    def add_task(self, description: str, *, total: int) -> int:
        """Set the text and the number of steps; there is one task, number 0."""
        self._description, self._total = description, total
        return 0

    def start(self) -> None:
        """Show the line for the first time."""
        self._started = time.monotonic()
        self._show(is_new=True)

    def update(
        self, task: int, *, description: str | None = None, completed: int | None = None
    ) -> None:
        """Change the text, or the number of completed steps."""
        self._description = self._description if description is None else description
        self._done = self._done if completed is None else completed
        if self._shown and time.monotonic() - self._shown >= _SECONDS:
            self._show()

    def advance(self, task: int) -> None:
        """Count one step."""
        self.update(task, completed=self._done + 1)

    def stop(self) -> None:
        """Show the last text."""
        if self._shown:
            self._show()

    def _show(self, *, is_new: bool = False) -> None:
        from IPython.display import display, update_display

        self._shown = time.monotonic()
        seconds = self._shown - self._started
        text = f"{self._description}  {self._done}/{self._total}  {seconds:.0f} s"
        content: dict[str, Any] = {"text/plain": text}
        if is_new:
            display(content, raw=True, display_id=self._id)
        else:
            update_display(content, raw=True, display_id=self._id)
