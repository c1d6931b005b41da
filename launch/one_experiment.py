"""Shared code of entries for one experiment: flags, and the run from them to results."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags

from jaxfed.host import gc_tuning
from jaxfed.host.interruption import Interruption

from . import entry

_CONFIG = entry.config_flag()
_WORKDIR = entry.workdir_flag()
_OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Delete the results in --workdir and start afresh."
)
_TRACKER = entry.tracker_flag()
_COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "HOST:PORT of process 0, of several processes that run this command, one or more a host; 'auto' takes "
    "this and the next two from the cluster's environment.",
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many processes there are.")
_PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "Which of them this is; process 0 alone writes --workdir."
)


def conducted(
    arguments: list[str],
    overrides: list[str],
    interruption: Interruption,
    *,
    attachment: Callable[[], Any] = lambda: None,
) -> int:
    """Check, prepare, then create the workdir and run; a user error leaves nothing behind.

    `attachment`, called late, imports what is attached to the experiment (`jaxfed.audit.audit.Audit`).

    Returns the exit status: 1 if a method has diverged or has no models, now or in an earlier run.
    """
    entry.refuse(arguments)
    entry.require(config=_CONFIG.value, workdir=_WORKDIR.value)

    # Imported late, so that --helpshort and a mistyped flag get a fast answer.
    with gc_tuning.importing():
        from jaxfed.host.parallel import devices, processes

        processes.connect(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
        devices.one_device_a_core()

        from rich.console import Console

        from jaxfed.api.run import conduct, present
        from jaxfed.config.check import opened
        from jaxfed.config.keys import flatten
        from jaxfed.experiment.run.progress import RunProgress
        from jaxfed.experiment.run.summary import complaints
        from jaxfed.experiment.store import workdir
        from jaxfed.experiment.store.records import read_run
        from jaxfed.experiment.store.workdir import IN_A_SWEEP
        from jaxfed.experiment.tracking import chosen
        from jaxfed.host.location import location

        attached = attachment()

    def status(summary: Mapping[str, Any]) -> int:
        lines = complaints(summary)
        for line in lines:
            _say(line)
        return 1 if lines else 0

    with processes.together():
        config = opened(
            _CONFIG.value,
            overrides,
            command=attached.command if attached else "launch.run",
            in_sweep=IN_A_SWEEP in os.environ,
        )
        settings = config.to_dict()
        place = location(_WORKDIR.value, "--workdir")
        trackers = chosen(_TRACKER.value, "--tracker") if processes.is_first() else []
    flat = flatten(workdir.plain(settings))
    same = {"--num_processes": str(_NUM_PROCESSES.value)}
    processes.check_same(same | {f"config.{key}": json.dumps(value) for key, value in flat})
    finished = ""
    with processes.together():
        if processes.is_first() and not _OVERWRITE.value:
            finished = "finished" * workdir.is_finished(place, settings)
    if processes.gather_texts(finished)[0]:
        if not processes.is_first():
            return 0
        if attached:
            attached.check_finished(place)
        print(f"{place} is finished; --overwrite runs it again")
        return status(read_run(place).summary or {})
    console = None if processes.is_first() else Console(quiet=True)
    with RunProgress(settings, console) as progress:
        summary = conduct(
            config,
            place,
            progress,
            interruption,
            overwrite=_OVERWRITE.value,
            attach=attached,
            trackers=trackers,
        )
    if processes.is_first():
        run = present(progress, place)
        if attached:
            attached.present(progress, run)
    return status(summary)


def _say(line: str) -> None:
    print(f"jaxfed: {line}", file=sys.stderr, flush=True)
