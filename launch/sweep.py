"""Run every point of a config's `sweep(add)` or of a grid, each as a launch.run in its own directory.

python -m launch.sweep --config=ml_collections_configs/NAME.py[:VARIANT] --workdir=DIR
    [--jobs=N] [--dry_run] [--tracker=NAME] [--sweep.KEY=VALUE,VALUE ...] [--config.KEY=VALUE ...]

With `--sweep.KEY` the points are all combinations of the values, in place of those of `sweep(add)`. A
baseline that the swept keys do not change runs at one point; the other points reuse its rows.

All points' configs are checked before the first one runs: one that cannot work gives one line and exit status
2. Finished points are skipped, unfinished ones resume. A point that fails does not stop the
others. The exit status is 1 if a point failed, or if one of its methods diverged.
`launch.report DIR` shows the results so far.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host.interruption import Interruption

from . import entry

_CONFIG = entry.config_flag()
_GRID = flags.DEFINE_multi_string(
    "sweep",
    [],
    "KEY=VALUE,VALUE,..., written --sweep.KEY=VALUE,VALUE: the points are all combinations of such values, "
    "in place of those that the config's sweep(add) adds; commas in brackets are part of a value.",
)
_WORKDIR = entry.workdir_flag()
_TRACKER = entry.tracker_flag()
_JOBS = flags.DEFINE_integer("jobs", 1, "How many points run at a time.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the commands and run nothing.")


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Check all points, then run those that have not finished."""
    entry.refuse(arguments)
    entry.require(config=_CONFIG.value, workdir=_WORKDIR.value)
    if _JOBS.value < 1:
        raise UsageError(f"--jobs={_JOBS.value}: use integers from 1 on")

    # Imported late, so that --helpshort and a mistyped flag are answered at once.
    from jaxfed.experiment import sweep
    from jaxfed.experiment.tracking import chosen
    from jaxfed.host.location import location
    from jaxfed.host.terminal import Terminal

    chosen(_TRACKER.value, "--tracker")
    directory = location(_WORKDIR.value, "--workdir")
    plan = sweep.plan(_CONFIG.value, overrides, _GRID.value)
    tracked = [f"--tracker={name}" for name in _TRACKER.value]
    command = sweep.run_command(plan, f"{__package__}.run", tracked)
    titles = {point.name: point.title for point in plan.points}
    reused = [pair for point in plan.points for pair in point.reused.items()]
    for (method, name), times in Counter(reused).items():
        print(
            f"{method}: the sweep does not change it at {times + 1} points; it runs once, at {titles[name]}",
            file=sys.stderr,
        )
    repeats = {point.settings["num_repeats"] for point in plan.points}
    if "seed" in plan.base and max(repeats) > 1:
        print(
            f"seed is swept with num_repeats={max(repeats)}: repeat i has seed + i, so points with "
            "neighboring seeds share repeats; num_repeats alone is the number of seeds",
            file=sys.stderr,
        )
    if _DRY_RUN.value:
        for point in plan.points:
            print(shlex.join(command(point, directory / point.name)))
        return 0
    with sweep.claim(plan, directory):
        points = sweep.unfinished(plan, directory)
        with Terminal(len(points), "starting") as progress:
            if skipped := len(plan.points) - len(points):
                progress.say(f"{skipped} points are finished already")
            failed = sweep.run(
                points,
                directory,
                command,
                jobs=_JOBS.value,
                progress=progress,
                interruption=interruption,
            )
    print(
        f"{len(plan.points) - len(failed)} of {len(plan.points)} points are finished; "
        f"python -m launch.report {directory} shows them"
    )
    for name in failed:
        print(f"failed: {titles[name]}, see {directory / 'logs' / name}.log", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    entry.start(main)
