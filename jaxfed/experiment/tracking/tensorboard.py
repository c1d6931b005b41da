"""Event files for TensorBoard, one folder a method and repeat, by the package `tensorboard` alone.

TensorFlow is not used, nor imported where it is installed: `tensorboard.summary`'s EventFileWriter would
import it, so records are written to plain files here. A line of metrics.jsonl is one event, flushed at
once. Values are float32, as TensorBoard has them; metrics.jsonl has all digits.

    SCALARS    one chart a metric, one line a method and repeat; `final/` has the metrics of summary.json
    HPARAMS    the config's settings beside the metrics
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxfed.experiment.store.workdir import TENSORBOARD
from jaxfed.experiment.tracking.tracker import TrackedRun

_SUFFIX = ".jaxfed"


class TensorBoard:
    """Tracker that writes FOLDER/METHOD-REPEAT/events.out.tfevents.*; by default in WORKDIR/tensorboard."""

    name = "tensorboard"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def start(self, run: TrackedRun) -> None:
        """Begin a file. Readers drop events of earlier files from the next round on, if there are any."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = (self._folder or run.workdir / TENSORBOARD) / run.name
        folder.mkdir(parents=True, exist_ok=True)
        if run.last_round < 0:
            for old in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
                old.unlink()
        # Readers take files in the order of their names.
        file = folder / f"events.out.tfevents.{time.time_ns()}{_SUFFIX}"
        self._make, self._file = Event, RecordWriter(file.open("wb"))
        self._time, self._round = run.started, run.last_round
        self._write(file_version="brain.Event:2")
        session = SessionLog(status=SessionLog.START)
        self._write(step=run.last_round + 1, session_log=session)
        if run.last_round < 0:
            self._write(summary=_settings(run))
        run.tell(f"tensorboard --logdir={folder.parent}")

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Write an event, dated by the seconds that rounds took."""
        self._time += metrics.get("seconds", 0.0)
        self._round = round_number
        self._write(step=round_number, summary=_scalars(metrics))

    def finish(self, summary: dict[str, float] | None) -> None:
        """Write `final/` metrics at the last round; close the file."""
        if summary is not None:
            final = {f"final/{name}": value for name, value in summary.items()}
            self._write(step=self._round, summary=_scalars(final))
        self._file.close()

    def _write(self, **fields: Any) -> None:
        event = self._make(wall_time=self._time, **fields)
        self._file.write(event.SerializeToString())
        self._file.flush()


def _scalars(metrics: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(
        value=[Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
    )


def _settings(run: TrackedRun) -> Any:
    """Return the config as settings for HPARAMS."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    plain = {
        key: value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in run.config.items()
    }
    return hparams_pb(plain, trial_id=run.id, start_time_secs=run.started)
