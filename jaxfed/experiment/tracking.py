"""Trackers of experiments: TensorBoard, Weights & Biases, or an object of the user's own.

A tracker receives the lines of metrics.jsonl once the loop has written them, and nothing else. One method in
one repeat is one tracked run, named as its folder under states/ (`fedavg-0`).
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError, suggestion
from jaxfed.experiment.run.summary import Record, accumulated
from jaxfed.experiment.store.records import read_metrics
from jaxfed.experiment.store.workdir import TENSORBOARD, TRACKING, plain
from jaxfed.host import safe_files


@dataclass(frozen=True)
class TrackedRun:
    """One method in one repeat of an experiment.

    Attributes:
        method: its name in the config.
        repeat: from 0 on.
        experiment: its unique name: the workdir's name and eight hex digits; new after `overwrite`.
        workdir: of the experiment.
        config: as resolved, flat (`xclp.num_bits` -> 4096), with `method` and `repeat`.
        last_round: the last round of an earlier process that metrics.jsonl has; -1: none.
        tell: prints a line for the user, once.
    """

    method: str
    repeat: int
    experiment: str
    workdir: Path
    config: Mapping[str, Any]
    last_round: int = -1
    tell: Callable[[str], None] = lambda line: None

    @property
    def name(self) -> str:
        """`METHOD-REPEAT`."""
        return f"{self.method}-{self.repeat}"

    @property
    def id(self) -> str:
        """The experiment and the name: unique, and the same when the run resumes."""
        return f"{self.experiment}-{self.name}"


@runtime_checkable
class Tracker(Protocol):
    """Receiver of the numbers of one run after another: `start`, `log` for each round, `finish`.

    An exception never stops the experiment: a line names it, and the tracker receives nothing more.
    """

    def start(self, run: TrackedRun) -> None:
        """Open the run, or continue it if `run.last_round` is not negative."""

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log the numbers of one round; rounds ascend.

        Rounds that a killed process lost are played and logged again when the run resumes, with the same
        numbers except for times. Nested names are joined by slashes (`communication/upload_bytes`). Undefined
        values are left out.
        """

    def finish(self, summary: dict[str, float] | None) -> None:
        """Close the run.

        Args:
            summary: final metrics as in summary.json: those of the last round, seconds and bytes summed over
                all rounds. None if the experiment was interrupted; `start` may then continue the run.
        """


class Tracking:
    """Context manager that passes an experiment's lines of metrics.jsonl on to trackers.

    A tracker that is new to an unfinished experiment receives the further rounds alone. Leaving the context
    closes the run that is open: as finished, or as interrupted if there was an exception.
    WORKDIR/tracking.jsonl has the experiment's id.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        config: Mapping[str, Any],
        workdir: Path,
        tell: Callable[[str], None],
    ) -> None:
        """Take trackers, the resolved config, and a function that prints a line once."""
        self._trackers = [*trackers]
        self._config, self._workdir, self._tell = config, workdir, tell
        self._run: TrackedRun | None = None
        self._lines: list[Record] = []  # of the run that is open

    def __enter__(self) -> Self:
        if self._trackers:
            file = self._workdir / TRACKING
            if not file.exists():
                file.write_text(json.dumps({"id": secrets.token_hex(4)}) + "\n")
            with safe_files.guarded(file):
                own = json.loads(safe_files.content_of(file))["id"]
            self._experiment = f"{self._workdir.resolve().name}-{own}"
        return self

    def __exit__(self, kind: object, exception: BaseException | None, trace: object) -> None:
        self._close(is_finished=exception is None)

    def log(self, record: Record) -> None:
        """Pass on a line that metrics.jsonl has just received."""
        if not self._trackers:
            return
        whose = record["algorithm"], record["repeat"]
        if self._run is None or whose != (self._run.method, self._run.repeat):
            self._close(is_finished=True)
            lines = read_metrics(self._workdir)[:-1]
            self._lines = [r for r in lines if (r["algorithm"], r["repeat"]) == whose]
            self._run = TrackedRun(
                *(*whose, self._experiment, self._workdir),
                {"method": whose[0], "repeat": whose[1], **dict(flatten(plain(self._config)))},
                last_round=max((line["round"] for line in self._lines), default=-1),
                tell=self._tell,
            )
            self._call("start", self._run)
        self._lines.append(plain(record))
        self._call("log", record["round"], numbers(record))

    def _close(self, *, is_finished: bool) -> None:
        if self._run is not None:
            final = numbers(reduce(accumulated, self._lines, {}))
            self._call("finish", final if is_finished else None)

    def _call(self, method: str, *arguments: Any) -> None:
        for tracker in tuple(self._trackers):
            try:
                own = (dict(each) if isinstance(each, dict) else each for each in arguments)
                getattr(tracker, method)(*own)
            except Exception as error:
                self._trackers.remove(tracker)
                why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                name = type(tracker).__name__
                self._tell(f"{name} failed and is left out from here on; the run goes on: {why}")


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the defined numbers of a line of metrics.jsonl; nested names are joined by slashes."""
    return {
        name.replace(".", "/"): float(value)
        for name, value in flatten(plain(record))
        if isinstance(value, int | float) and name not in ("repeat", "round")
    }


class TensorBoard:
    """Tracker that writes WORKDIR/tensorboard/METHOD-REPEAT/events.out.tfevents.*.

    SCALARS has one chart a metric, and `final/` the metrics of summary.json. Values are float32, as
    TensorBoard has them; metrics.jsonl has all digits.
    """

    # TensorFlow is not used, nor imported where it is installed: `tensorboard.summary`'s EventFileWriter
    # would import it, so records are written to plain files here.

    def start(self, run: TrackedRun) -> None:
        """Begin a file. Readers drop events of earlier files from the next round on, if there are any."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = run.workdir / TENSORBOARD / run.name
        folder.mkdir(parents=True, exist_ok=True)
        if run.last_round < 0:
            for old in folder.glob("events.out.tfevents.*.jaxfed"):
                old.unlink()
        # Readers take files in the order of their names.
        file = folder / f"events.out.tfevents.{time.time_ns()}.jaxfed"
        self._file, self._round = RecordWriter(file.open("wb")), run.last_round
        self._write(file_version="brain.Event:2")
        session = SessionLog(status=SessionLog.START)
        self._write(step=run.last_round + 1, session_log=session)
        run.tell(f"tensorboard --logdir={folder.parent}")

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Write an event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._round = round_number
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._write(step=round_number, summary=Summary(value=values))

    def finish(self, summary: dict[str, float] | None) -> None:
        """Write `final/` metrics at the last round; close the file."""
        if summary is not None:
            self.log(self._round, {f"final/{name}": value for name, value in summary.items()})
        self._file.close()

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._file.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()


class WeightsAndBiases:
    """Tracker that logs to Weights & Biases: a group an experiment, the method as job type.

    Where `wandb login` has been done (or WANDB_API_KEY is set), runs go to the project "jaxfed" of that
    account. Elsewhere, and with WANDB_MODE=offline, they stay in ./wandb, without a question on the terminal,
    until `wandb sync`, which joins the folders of a resumed run. A run consists of config and metrics: no
    console output, no code, no list of packages, no system metrics. Arguments are those of `wandb.init`, in
    place of those here.
    """

    def __init__(self, **init: Any) -> None:
        self._init = init

    def start(self, run: TrackedRun) -> None:
        """Begin or continue a run; offline without an account."""
        import wandb

        mode = self._init.get("mode", os.environ.get("WANDB_MODE"))
        # With a run of the user's own in this process, wandb.login would refuse.
        if mode is None and wandb.run is None and not wandb.login(prompt=False, verify=False):
            mode = "offline"
        usual = {
            "project": os.environ.get("WANDB_PROJECT", "jaxfed"),
            "group": run.experiment,
            "job_type": run.method,
            "name": run.name,
            "id": run.id,
            "config": dict(run.config),
            "allow_val_change": True,  # a resumed run may have more workers
            "mode": mode,
            "resume": None if mode == "offline" else "allow",
            "reinit": "create_new",
            "settings": wandb.Settings(
                console="off",
                quiet=True,
                init_timeout=30.0,  # seconds; without a server the tracker has failed
                disable_code=True,
                disable_git=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        }
        self._run = wandb.init(**{**usual, **self._init})
        offline = "in ./wandb, until `wandb login` and `wandb sync`"
        place = offline if self._run.offline else f"at {self._run.project_url}"
        run.tell(f"Weights & Biases has config and metrics {place}")

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log a step."""
        self._run.log(metrics, step=round_number)

    def finish(self, summary: dict[str, float] | None) -> None:
        """Set the run's summary and end it; an interrupted run counts as failed until it resumes."""
        self._run.summary.update(summary or {})
        self._run.finish(exit_code=0 if summary is not None else 1)


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def chosen(given: Sequence[Any], key: str) -> list[Tracker]:
    """Return trackers by their libraries' names (`TRACKERS`), or as objects; errors name `key`.

    Raises:
        UsageError: an unknown name, a missing library, or an object without a tracker's methods.
    """
    for each in given:
        if not isinstance(each, str | Tracker):
            raise UsageError("lacks a method: start, log or finish", key=key, value=each)
    return [_made(each, key) if isinstance(each, str) else each for each in given]


def _made(name: str, key: str) -> Tracker:
    if name not in TRACKERS:
        raise UsageError(f"no such tracker{suggestion(name, TRACKERS)}", key=key, value=name)
    spec = find_spec(name)  # without importing it
    if spec is None or spec.origin is None:  # the second: a folder, such as ./wandb of offline runs
        raise UsageError("is not installed", key=key, value=name, allowed=f"pip install {name}")
    return TRACKERS[name]()
