"""Event files for TensorBoard of runs that have finished, or stopped, from their metrics.jsonl."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import reduce
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

from jaxfed.errors import UsageError
from jaxfed.experiment.run.summary import accumulated
from jaxfed.experiment.store.records import Run, find, read_metrics
from jaxfed.experiment.tracking.tensorboard import TensorBoard
from jaxfed.experiment.tracking.tracker import TrackedRun, check_installed, numbers, settings
from jaxfed.host.location import folder_to_write


def write_event_files(
    workdirs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]
) -> tuple[int, Path]:
    """Write OUT/RUN/METHOD-REPEAT/, or OUT/SWEEP/POINT/METHOD-REPEAT/, of all runs under `workdirs`.

    Event files that an earlier call left there are replaced. A second run of a name has a number: RUN-2.

    Returns:
        The number of methods and repeats, and `out` as a path.

    Raises:
        UsageError: TensorBoard is not installed; a workdir is missing or holds no run; `out` cannot be
            written.
    """
    check_installed("tensorboard", "--tensorboard")
    folder = folder_to_write(out, "--tensorboard")
    if not workdirs:
        raise UsageError("give a workdir of launch.run or launch.sweep")
    found = find(workdirs)
    named = [(Path(run.name), run) for run in found.runs]
    for sweep in found.sweeps:
        named += [(Path(sweep.name, point.name), point.run) for point in sweep.points if point.run]
    taken: set[Path] = set()
    written = 0
    for name, run in named:
        others = (name.with_name(f"{name.name}-{number}") for number in range(2, len(named) + 2))
        place = next(path for path in chain([name], others) if path not in taken)
        taken.add(place)
        written += _write(run, folder / place)
    return written, folder


def _write(run: Run, folder: Path) -> int:
    """Write the event files of one run and return their number."""
    records = read_metrics(run.workdir)
    if not records:
        return 0
    ended = (run.workdir / "metrics.jsonl").stat().st_mtime
    started = ended - sum(record.get("seconds", 0.0) for record in records)
    tracker, written = TensorBoard(folder), 0
    for (method, repeat), group in groupby(records, key=itemgetter("algorithm", "repeat")):
        lines = list(group)
        config = settings(run.config, method, repeat)
        tracker.start(TrackedRun(method, repeat, run.name, run.workdir, config, started=started))
        for line in lines:
            tracker.log(line["round"], numbers(line))
        final = numbers(reduce(accumulated, lines, {}))
        tracker.finish(final if run.finished else None)
        started += sum(line.get("seconds", 0.0) for line in lines)
        written += 1
    return written
