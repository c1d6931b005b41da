"""Progress display of a sweep: a bar with a time estimate on a terminal, plain lines elsewhere."""

from jaxfed.experiment.sweep.sweep_plan import Point
from jaxfed.host.terminal import Terminal


class SweepProgress(Terminal):
    """Context manager that displays the points of one sweep as they end."""

    def __init__(self, num_points: int, *, skipped: int) -> None:
        super().__init__(num_points, "starting")
        self._num_points, self._num_ended = num_points, 0
        self._running: list[str] = []
        if skipped:
            self.say(f"{skipped} points are finished already")

    def started(self, point: Point) -> None:
        """Show the point beside the bar."""
        self._running.append(point.title)
        self._describe_running()
        if not self.is_interactive:
            self.say(f"{point.title}: started")

    def ended(self, point: Point, seconds: float, failure: str) -> None:
        """Print a line with the outcome of a point."""
        self._running.remove(point.title)
        self._num_ended += 1
        self.advance()
        self._describe_running()
        outcome = f"failed with {failure}" if failure else f"finished in {seconds:.1f} s"
        self.say(f"[{self._num_ended}/{self._num_points}] {point.title}: {outcome}")

    def _describe_running(self) -> None:
        first = self._running[0] if self._running else ""
        more = f" and {len(self._running) - 1} more" if len(self._running) > 1 else ""
        self.describe(f"{first}{more}")
