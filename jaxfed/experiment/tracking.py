"""Trackers of experiments: TensorBoard, Weights & Biases, or an object of the user's own.

A tracker receives the lines of metrics.jsonl once the loop has written them, and nothing else. One method in
one repeat is one tracked run, named as its folder under states/ (`fedavg-0`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError, suggestion
from jaxfed.experiment.run.summary import Record, accumulated, numbers
from jaxfed.experiment.store.records import read_metrics
from jaxfed.experiment.store.workdir import TENSORBOARD, experiment_name, plain

Say = Callable[[str], None]


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
    tell: Say = lambda line: None

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
        """Log the `numbers` of a round; a resumed run logs rounds again that a killed process has lost."""

    def finish(self, summary: dict[str, float] | None) -> None:
        """Close the run; `summary`, as in summary.json, is None if it was interrupted and may continue."""


@contextmanager
def tracked(
    trackers: Sequence[Tracker], config: Mapping[str, Any], workdir: Path, tell: Say
) -> Iterator[Callable[[Record], None]]:
    """Yield a function that passes each new line of metrics.jsonl on to trackers.

    A tracker that is new to an unfinished experiment receives the further rounds alone. Leaving the context
    closes the run that is open: as finished, or as interrupted if there was an exception. `tell` prints a
    line once.
    """
    receivers = [*trackers]
    experiment = experiment_name(workdir) if trackers else ""
    open_run: TrackedRun | None = None
    lines: list[Record] = []  # of that run

    def call(method: str, *arguments: Any) -> None:
        for tracker in tuple(receivers):
            try:
                copies = (dict(each) if isinstance(each, dict) else each for each in arguments)
                getattr(tracker, method)(*copies)
            except Exception as error:
                receivers.remove(tracker)
                why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                name = type(tracker).__name__
                tell(f"{name} failed and is left out from here on; the run goes on: {why}")

    def close(*, is_finished: bool) -> None:
        if open_run is not None:
            call("finish", numbers(reduce(accumulated, lines, {})) if is_finished else None)

    def log(record: Record) -> None:
        nonlocal open_run
        pair = record["algorithm"], record["repeat"]
        if open_run is None or pair != (open_run.method, open_run.repeat):
            close(is_finished=True)
            earlier = read_metrics(workdir)[:-1]
            lines[:] = [r for r in earlier if (r["algorithm"], r["repeat"]) == pair]
            open_run = TrackedRun(
                *(*pair, experiment, workdir),
                {"method": pair[0], "repeat": pair[1], **dict(flatten(plain(config)))},
                last_round=max((line["round"] for line in lines), default=-1),
                tell=tell,
            )
            call("start", open_run)
        lines.append(plain(record))
        call("log", record["round"], numbers(record))

    try:
        yield log if receivers else lambda record: None
    except BaseException:
        close(is_finished=False)
        raise
    close(is_finished=True)


class TensorBoard:
    """Tracker that writes WORKDIR/tensorboard/METHOD-REPEAT/events.out.tfevents.*.

    SCALARS has one chart a metric, and `final/` the metrics of summary.json. Values are float32, as
    TensorBoard has them; metrics.jsonl has all digits.
    """

    # `tensorboard.summary` would import TensorFlow where it is installed; this does not.

    def start(self, run: TrackedRun) -> None:
        """Begin a file. Readers drop events of earlier files from the next round on, if there are any."""
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
        self._write(step=run.last_round + 1, session_log={"status": "START"})
        run.tell(f"tensorboard --logdir={folder.parent}")

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Write an event."""
        self._round = round_number
        values = [{"tag": tag, "simple_value": value} for tag, value in metrics.items()]
        self._write(step=round_number, summary={"value": values})

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

    With an account (`wandb login` or WANDB_API_KEY), runs go to its project "jaxfed". Without one, and with
    WANDB_MODE=offline, they stay in ./wandb until `wandb sync`, which joins the folders of a resumed run. A
    run consists of config and metrics: no console output, code, list of packages or system metrics. Arguments
    are those of `wandb.init`, in place of those here.
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
        where = offline if self._run.offline else f"at {self._run.project_url}"
        run.tell(f"Weights & Biases has config and metrics {where}")

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log a step."""
        self._run.log(metrics, step=round_number)

    def finish(self, summary: dict[str, float] | None) -> None:
        """Set the run's summary and end it; an interrupted run counts as failed until it resumes."""
        self._run.summary.update(summary or {})
        self._run.finish(exit_code=0 if summary is not None else 1)


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def chosen(trackers: Sequence[Any], key: str) -> list[Tracker]:
    """Return trackers by their libraries' names (`TRACKERS`), or as objects; a UsageError names `key`."""
    for each in trackers:
        if not isinstance(each, str):
            if not isinstance(each, Tracker):
                raise UsageError("lacks a method: start, log or finish", key=key, value=each)
        elif each not in TRACKERS:
            raise UsageError(f"no such tracker{suggestion(each, TRACKERS)}", key=key, value=each)
        elif getattr(find_spec(each), "origin", None) is None:  # also a folder, as ./wandb of wandb
            allowed = f"pip install {each}"
            raise UsageError("is not installed", key=key, value=each, allowed=allowed)
    return [TRACKERS[each]() if isinstance(each, str) else each for each in trackers]
