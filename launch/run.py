"""Run one experiment: a config's algorithm and its baselines, over its repeats.

python -m launch.run --config=ml_collections_configs/NAME.py[:VARIANT] --workdir=DIR
    [--overwrite] [--tracker=tensorboard|wandb] [--config.KEY=VALUE ...]
python -m launch.run --help_keys[=PREFIX] [--config=FILE.py[:VARIANT] --config.KEY=VALUE ...]

`opened` reads and checks the config, `make_algorithm` makes a method of it, and `execute` does all that comes
before the first round, and the rounds. Keys of a section are fields of its class in
`jaxfed.config.sections`. Keys of a method's section are the keywords of its factory, and
fields of a dataclass that it takes: `xclp.alpha` is one of `jaxfed.xclp.Parameters`.

A method whose loss is no longer finite stops; the others go on. The exit status is 1 if a method has stopped,
if none of its clients has a model in the end, or if its last round failed at every client.

A finished workdir is left as it is. An unfinished one resumes. One made by another config is refused.
"""

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
_HELP_KEYS = flags.DEFINE_string(
    "help_keys",
    None,
    "Print all keys of configs, or those that begin with a prefix (training, xclp.alpha), with defaults, "
    "allowed values and meanings; with --config also the values that it has.",
)


def main(
    arguments: list[str],
    overrides: list[str],
    interruption: Interruption,
    attachment: Callable[[], Any] = lambda: None,
) -> int:
    """Run the experiment, or print the reference of keys; a user error leaves nothing behind.

    `attachment`, called late, imports what is attached to the experiment (`jaxfed.audit.audit.Audit`).

    Returns the exit status: 1 if a method has diverged or has no models, now or in an earlier run.
    """
    entry.refuse(arguments)
    if _HELP_KEYS.value is not None:
        return _help(_HELP_KEYS.value, overrides)
    entry.require(config=_CONFIG.value, workdir=_WORKDIR.value)

    # Imported late, so that --helpshort and a mistyped flag get a fast answer.
    with gc_tuning.importing():
        from jaxfed.host.parallel import devices, processes

        processes.connect(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
        devices.one_device_a_core()

        from rich.console import Console

        from jaxfed.api.run import execute, present
        from jaxfed.config.assembly import make_algorithm
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
            print(f"jaxfed: {line}", file=sys.stderr, flush=True)
        return 1 if lines else 0

    with processes.together():
        config = opened(
            _CONFIG.value,
            overrides,
            command=attached.command if attached else "launch.run",
            in_sweep=IN_A_SWEEP in os.environ,
        )
        settings = config.to_dict()
        folder = location(_WORKDIR.value, "--workdir")
        trackers = chosen(_TRACKER.value, "--tracker") if processes.is_first() else []
    flat = flatten(workdir.plain(settings))
    same = {"--num_processes": str(_NUM_PROCESSES.value)}
    processes.check_same(same | {f"config.{key}": json.dumps(value) for key, value in flat})
    finished = ""
    with processes.together():
        if processes.is_first() and not _OVERWRITE.value:
            finished = "finished" * workdir.is_finished(folder, settings)
    if processes.gather_texts(finished)[0]:
        if not processes.is_first():
            return 0
        if attached:
            attached.check_finished(folder)
        print(f"{folder} is finished; --overwrite runs it again")
        return status(read_run(folder).summary or {})
    console = None if processes.is_first() else Console(quiet=True)
    with RunProgress(settings, console) as progress:
        summary = execute(
            config,
            folder,
            progress,
            interruption,
            make_algorithm,
            overwrite=_OVERWRITE.value,
            attach=attached,
            trackers=trackers,
        )
    if processes.is_first():
        run = present(progress, folder)
        if attached:
            attached.present(progress, run)
    return status(summary)


def _help(prefix: str, overrides: list[str]) -> int:
    from jaxfed.config import file as config_file
    from jaxfed.config.overrides import help_text

    if overrides:
        entry.require(config=_CONFIG.value)
    config = config_file.load(_CONFIG.value, overrides) if _CONFIG.value else None
    print(help_text(prefix, config))
    return 0


if __name__ == "__main__":
    entry.start(main)
