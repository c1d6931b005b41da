"""What a sweep shows while it works: on a terminal a bar with an estimate, lines elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console

from jaxfed.experiment.sweep_plan import Point
from jaxfed.host.terminal import Terminal


class SweepProgress:
    """Shows the points of one sweep as they end; a context manager."""

    def __init__(self, num_points: int, *, skipped: int, console: Console | None = None) -> None:
        self._num_points, self._num_ended = num_points, 0
        self._running: list[str] = []
        self._terminal = Terminal(num_points, "starting", console)
        if skipped:
            self._terminal.say(f"{skipped} points are finished already")

    def __enter__(self) -> Self:
        self._terminal.__enter__()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._terminal.__exit__(exception_type, exception, traceback)

    def started(self, point: Point) -> None:
        """Name the point beside the bar."""
        self._running.append(point.name)
        self._describe()
        if not self._terminal.is_interactive:
            self._terminal.say(f"{point.name}: started")

    def ended(self, point: Point, seconds: float, failure: str) -> None:
        """One line on how a point ended."""
        self._running.remove(point.name)
        self._num_ended += 1
        self._terminal.advance()
        self._describe()
        outcome = f"failed with {failure}" if failure else f"finished in {seconds:.1f} s"
        self._terminal.say(f"[{self._num_ended}/{self._num_points}] {point.name}: {outcome}")

    def _describe(self) -> None:
        first = self._running[0] if self._running else ""
        more = f" and {len(self._running) - 1} more" if len(self._running) > 1 else ""
        self._terminal.describe(f"{first}{more}")
