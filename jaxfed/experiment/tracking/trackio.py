"""Runs of Trackio: one a method and repeat, grouped by experiment, in the project "jaxfed".

Trackio keeps them on this machine (`trackio show` displays them), and sends them to a Space or server only if
TRACKIO_SPACE_ID or TRACKIO_SERVER_URL is set, or an argument says so. Its logs of CPU and GPU are turned off.

A resumed run continues the run of the same name, which is unique. Trackio has no summary: `final/` has the
metrics of summary.json. It collects lines for half a second, and has no way to wait for them before a run
ends, so a process that is killed may lose its last lines there.
"""

from __future__ import annotations

from typing import Any

from jaxfed.experiment.tracking.tracker import TrackedRun


class Trackio:
    """Tracker that logs to Trackio.

    Args:
        **init: arguments of `trackio.init` in place of those here, such as `project` or `space_id`.
    """

    name = "trackio"

    def __init__(self, **init: Any) -> None:
        self._init = init

    def start(self, run: TrackedRun) -> None:
        """Begin or continue a run."""
        import trackio

        usual = {
            "project": "jaxfed",
            "name": run.id,
            "group": run.experiment,
            "config": dict(run.config),
            "resume": "allow",
            "embed": False,
            "auto_log_gpu": False,
            "auto_log_cpu": False,
        }
        trackio.init(**{**usual, **self._init})
        self._trackio, self._round = trackio, run.last_round

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log a step."""
        self._round = round_number
        self._trackio.log(metrics, step=round_number)

    def finish(self, summary: dict[str, float] | None) -> None:
        """Log `final/` metrics and end the run."""
        if summary is not None:
            final = {f"final/{name}": value for name, value in summary.items()}
            self._trackio.log(final, step=self._round)
        self._trackio.finish()
