"""`jaxfed.run`: an experiment from a notebook, a script or a thread; `jaxfed.open`: a finished one's result.

    result = jaxfed.run("xclp_digits.py:smoke", seed=3, xclp__alpha=0.9)
    result.results                       # method x metric: mean and deviation over repeats

The path is the launcher's: the same checks, files, resumption and numbers. Signals stay the caller's. A round
that is cut short, by Ctrl-C in a notebook for instance, is done again by the same call with the same workdir.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict
from rich.console import Console

from jaxfed.api.result import Result
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.check import opened
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.methods import check_tested_alike
from jaxfed.config.overrides import as_text
from jaxfed.config.stored import restored
from jaxfed.errors import UsageError
from jaxfed.experiment.run import environment
from jaxfed.experiment.run.loop import Experiment, Make, first_repeat
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store import compilation_cache
from jaxfed.experiment.store import workdir as workdirs
from jaxfed.experiment.store.records import Run, read_json, read_run
from jaxfed.experiment.store.workdir import Workdir, finished_config, open_for_all
from jaxfed.experiment.tracking import Tracker, chosen, tracked
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import location, path_text
from jaxfed.host.parallel import devices, processes

if TYPE_CHECKING:
    from jaxfed.audit.audit import Audit

_TEMPORARY = ", a temporary folder that is deleted with the result; workdir=FOLDER keeps them"


def execute(
    config: ConfigDict,
    workdir: Path,
    progress: RunProgress,
    interruption: Interruption,
    make: Make,
    *,
    overwrite: bool = False,
    attach: type[Audit] | None = None,
    trackers: Sequence[Tracker] = (),
) -> dict[str, Any]:
    """Prepare, then make the workdir, then run: a mistake leaves nothing behind. Returns the summary.

    Before the first round, in this order: `Simulation` reads the data, `first_repeat` makes clients and
    methods, `open_for_all` the workdir, `Experiment.run` restores a checkpoint, `method_rounds` calls `init`.

    Args:
        config: resolved and checked.
        workdir: folder of the run's files.
        progress: entered; receives all that happens.
        interruption: signals, or the lack of them.
        make: makes a method's algorithm: `jaxfed.config.assembly.make_algorithm`.
        overwrite: delete what an earlier experiment left in `workdir`.
        attach: the audit (`jaxfed.audit.audit.Audit`), which observes rounds and adds its results.
        trackers: receivers of each round's numbers (`jaxfed.experiment.tracking.chosen`).

    Raises:
        UsageError: unsuitable or missing data; a workdir of another experiment; processes that differ.
    """
    settings = config.to_dict()
    if attach is None:
        check_tested_alike(config)
    with ExitStack() as stack:
        with processes.together():
            compilation_cache.enable(config.execution.compilation_cache)
            progress.working_on(f"loading {config.dataset.name}")
            simulation = Simulation(config)
            simulation.warn()
            files, attached = Workdir(workdir), None
            if attach is not None:
                attached = attach(config, simulation, files, progress)
                attached.check()
                make = attached.make
            experiment = Experiment(config, simulation, files, progress, interruption, make=make)
        held = simulation.holdings()
        few = f"; {config.cohort_size:,} clients a round" * (0 < config.cohort_size < held.clients)
        progress.say(held.line(config.dataset.name) + few)
        if processes.are_several():
            sums = simulation.data_checksums()
            processes.check_same({f"data.{name}": text for name, text in sums.items()})
        with processes.together():
            if overwrite or not Checkpoints(files.checkpoints).steps():
                progress.working_on("preparing data")
                experiment.first.update(
                    first_repeat(config, simulation, experiment.make_shown, progress.prepared)
                )
        directory = stack.enter_context(open_for_all(workdir, settings, overwrite=overwrite))
        track = stack.enter_context(tracked(trackers, settings, directory.path, progress.note))
        if overwrite:  # what is there from now on is this command's own
            interruption.continues = "the same command without --overwrite"
        experiment = replace(experiment, workdir=directory, track=track)
        if attached is not None:
            attached.begin()
            experiment = replace(experiment, observe=attached.observe)
        results = experiment.run()
        summary = {**results, "examples": held._asdict(), "environment": environment.describe()}
        if simulation.origin:
            summary["data_origin"] = simulation.origin
        run = directory.finished_run(summary)
        if attached is not None:
            attached.finish(run)
        directory.finish(summary)
        if config.execution.plots and processes.is_first():
            progress.working_on("drawing plots")
            # Here, because matplotlib takes a third of a second that a mistake need not wait for.
            from jaxfed.reports.figures import draw_plots

            draw_plots(run, directory.plots)
    return summary


def present(progress: RunProgress, workdir: Path, *, is_temporary: bool = False) -> Run:
    """Print and return the results of a finished run; say so if the folder is a result's own."""
    # Here, because a mistake need not wait for what reports import.
    from jaxfed.reports.names import REMARK, marked

    run = read_run(workdir)
    summary = run.summary or {}
    lines = [f"{REMARK[1:]} {line}" for line in summary.get("remarks", ())]
    where = f"{workdir}{_TEMPORARY * is_temporary}"
    progress.show_results(summary["algorithms"], where, marked(run), remarks=lines)
    return run


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
        progress: show a bar (on a terminal) or a line a round (elsewhere).
        trackers: receivers of each round's numbers: "tensorboard", "wandb", or objects
            with the methods of `jaxfed.experiment.tracking.Tracker`. They change no number and no config.
        **overrides: values of single keys, `xclp__alpha=0.9` for `xclp.alpha`.

    Raises:
        KeyboardInterrupt: Ctrl-C, or a notebook's stop; one line on what is kept and how to go on.
        UsageError: one line on what cannot be.
    """
    path_text(overrides.get("dataset__name", ""), "config.dataset.name")
    texts = [as_text(key.replace("__", "."), value) for key, value in overrides.items()]
    if not isinstance(config, ConfigDict):
        config = path_text(config, "config")
    settings = opened(config, texts)
    receivers = chosen(trackers, "trackers")
    if processes.are_several():
        raise UsageError("jaxfed.run: runs in one process only; several processes run launch.run")
    devices.one_device_a_core()
    is_temporary = workdir is None
    path = Path(mkdtemp(prefix="jaxfed-")) if workdir is None else location(workdir, "workdir")
    if overwrite or not workdirs.is_finished(path, settings.to_dict()):
        try:
            console = None if progress else Console(quiet=True)
            with RunProgress(settings.to_dict(), console) as shown:
                execute(
                    *(settings, path, shown, Interruption(), make_algorithm),
                    overwrite=overwrite,
                    trackers=receivers,
                )
            if progress:
                present(shown, path, is_temporary=is_temporary)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                call = "call without overwrite=True" if overwrite else "call"
                kept = f"the same {call} goes on in {path}"
                if is_temporary:
                    kept = "nothing is kept: with workdir=FOLDER a run can go on"
                error = Stopped(f"stopped; {kept}")
            if is_temporary:
                shutil.rmtree(path, ignore_errors=True)
            raise error from None
    result = Result(path, settings, read_json(path, "summary.json"))
    if is_temporary:
        weakref.finalize(result, shutil.rmtree, path, ignore_errors=True)
    return result


def open(workdir: str | os.PathLike[str]) -> Result:
    """Open a finished run, without its config file and overrides.

    Nothing is computed and no data are read before the result is asked for a model or its clients. A run of a
    method, network or reader of your own needs the import that registers it before that.

    Args:
        workdir: of `jaxfed.run` or `launch.run`, or of a point of a sweep.

    Raises:
        UsageError: one line: no such folder, no workdir, a run that has not finished, a damaged file.
    """
    path = location(workdir, "workdir")
    try:
        config = finished_config(path)
    except UsageError as error:
        raise UsageError(f"jaxfed.open({os.fspath(workdir)!r}): {error}") from error
    return Result(path, restored(config), read_json(path, "summary.json"))
