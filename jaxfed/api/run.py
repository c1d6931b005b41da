"""`jaxfed.run`: an experiment from a notebook, a script or a thread; `jaxfed.open`: a finished one's result.

    result = jaxfed.run("xclp_digits.py:smoke", seed=3, xclp__alpha=0.9)
    result.results                       # method x metric: mean and deviation over repeats

The path is the launcher's: the same checks, files, resumption and numbers. Signals stay the caller's. A round
that is cut short, by Ctrl-C in a notebook for instance, is done again by the same call with the same workdir.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from jaxfed.api.conduct import conduct, present
from jaxfed.api.result import Result
from jaxfed.config.overrides import as_text
from jaxfed.config.reading import opened
from jaxfed.config.stored import restored
from jaxfed.errors import UsageError
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store import workdir as workdirs
from jaxfed.experiment.store.records import read_json
from jaxfed.experiment.store.workdir import Workdir, finished_config
from jaxfed.experiment.tracking import Tracker, chosen
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import location
from jaxfed.host.parallel import devices, processes


class Stopped(KeyboardInterrupt):
    """A run that Ctrl-C, or a notebook's stop, has ended; its text says how to go on.

    A notebook shows the text alone.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def run(
    config: str | os.PathLike[str] | ConfigDict,
    *,
    workdir: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: bool = True,
    trackers: Sequence[str | Tracker] = (),
    **overrides: Any,
) -> Result:
    """Run one experiment, resume it, or return its results if it has finished.

    Args:
        config: FILE.py[:VARIANT], or the name of a shipped config; or a ConfigDict.
        workdir: where results go; None: a folder of the result's own, deleted with it.
        overwrite: delete the results in `workdir` and start afresh.
        progress: show a bar (on a terminal), a line a method (in a notebook) or a round (elsewhere).
        trackers: receivers of each round's numbers: "tensorboard", "wandb", or objects
            with the methods of `jaxfed.experiment.tracking.Tracker`. They change no number and no config.
        **overrides: values of single keys, `xclp__alpha=0.9` for `xclp.alpha`.

    Raises:
        KeyboardInterrupt: Ctrl-C, or a notebook's stop; one line on what is kept and how to go on.
        UsageError: one line on what cannot be: a key, a value, a key that nothing in the run reads, missing
            data, another experiment's workdir.
    """
    if not isinstance(source := overrides.get("dataset__name", ""), str | os.PathLike):
        raise UsageError(
            f"config.dataset.name: is of type {type(source).__name__}; give the name or the path of a data "
            "set (arrays go into a file by numpy.savez(FILE, x=..., y=...), or to "
            "jaxfed.Federation.from_clients)"
        )
    texts = [as_text(key.replace("__", "."), value) for key, value in overrides.items()]
    if isinstance(config, os.PathLike):
        config = os.fspath(config)
    if not isinstance(config, str | ConfigDict):
        raise UsageError(
            f"jaxfed.run({type(config).__name__}): use FILE.py[:VARIANT], the name of a shipped "
            "config, or a ConfigDict"
        )
    settings = opened(config, texts)
    receivers = chosen(trackers, "trackers")
    if processes.are_several():
        raise UsageError("jaxfed.run: runs in one process only; several processes run launch.run")
    devices.one_device_a_core()
    is_temporary = workdir is None
    place = Path(mkdtemp(prefix="jaxfed-")) if workdir is None else location(workdir, "workdir")
    if overwrite or not workdirs.is_finished(place, settings.to_dict()):
        try:
            console = None if progress else Console(quiet=True)
            with RunProgress(settings.to_dict(), console) as shown:
                conduct(
                    *(settings, place, shown, Interruption()),
                    overwrite=overwrite,
                    trackers=receivers,
                )
            if progress:
                present(shown, place, is_temporary=is_temporary)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                rounds = Checkpoints(Workdir(place).checkpoints).newest() or 0
                call = "call without overwrite=True" if overwrite else "call"
                error = Stopped(
                    "stopped; nothing is kept: with workdir=FOLDER a run can go on"
                    if is_temporary
                    else f"stopped; the same {call} goes on after round {rounds} in {place}"
                )
            if is_temporary:
                shutil.rmtree(place, ignore_errors=True)
            raise error from None
    return Result(place, settings, read_json(place, "summary.json"), owns_workdir=is_temporary)


def open(workdir: str | os.PathLike[str]) -> Result:
    """Open a finished run, without its config file and overrides.

    Nothing is computed and no data are read before the result is asked for a model or its clients. A run of a
    method, network or reader of your own needs the import that registers it before that.

    Args:
        workdir: of `jaxfed.run` or `launch.run`, or of a point of a sweep.

    Returns:
        The same as `jaxfed.run` with this workdir.

    Raises:
        UsageError: one line: no such folder, no workdir, a run that has not finished, a damaged file.
    """
    place = location(workdir, "workdir")
    try:
        config = finished_config(place)
    except UsageError as error:
        raise UsageError(f"jaxfed.open({os.fspath(workdir)!r}): {error}") from error
    return Result(place, restored(config), read_json(place, "summary.json"))
