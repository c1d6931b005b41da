"""One experiment from its config to its summary: what the launcher and `jaxfed.run` both do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from jaxfed.config.data.simulation import Simulation, few_rows
from jaxfed.config.methods import check_tested_alike
from jaxfed.experiment.run import environment
from jaxfed.experiment.run.loop import Experiment, first_repeat
from jaxfed.experiment.run.processes import open_for_all
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store import compilation_cache
from jaxfed.experiment.store.records import Run, read_run
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.experiment.tracking import Tracker, Tracking
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.interruption import Interruption
from jaxfed.host.parallel import processes

if TYPE_CHECKING:
    from jaxfed.audit.audit import Audit


def conduct(
    config: ConfigDict,
    place: Path,
    progress: RunProgress,
    interruption: Interruption,
    *,
    overwrite: bool = False,
    attach: type[Audit] | None = None,
    make: Callable[..., FederatedAlgorithm] | None = None,
    trackers: Mapping[str, Tracker] = MappingProxyType({}),
) -> dict[str, Any]:
    """Prepare, then make the workdir, then run: a mistake leaves nothing behind. Returns the summary.

    Of several processes the first alone writes there (`jaxfed.experiment.run.processes`).

    Args:
        config: resolved and checked.
        place: the workdir.
        progress: entered; receives all that happens.
        interruption: signals, or the lack of them.
        overwrite: delete what an earlier experiment left in `place`.
        attach: the audit (`jaxfed.audit.audit.Audit`), which observes rounds and adds its results.
        make: makes a method's algorithm, as `make_algorithm`, which is the default.
        trackers: name -> receiver of each round's numbers (`jaxfed.experiment.tracking.chosen`).

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
            files, attached = Workdir(place), None
            if attach is not None:
                attached = attach(config, simulation, files, progress)
                attached.check()
                make = attached.make
            experiment = Experiment(config, simulation, files, progress, interruption, make=make)
        held = simulation.holdings()
        few = f"; {config.cohort_size:,} clients a round" * (0 < config.cohort_size < held.clients)
        progress.say(held.line(config.dataset.name) + few)
        for line in few_rows(held.test, held.validation):
            progress.note(line)
        if processes.are_several():
            sums = simulation.data_checksums()
            processes.check_same({f"data.{name}": text for name, text in sums.items()})
        with processes.together():
            if overwrite or not Checkpoints(files.checkpoints).newest():
                progress.working_on("preparing data")
                experiment.first.update(
                    first_repeat(config, simulation, experiment.maker, progress.prepared)
                )
        directory = stack.enter_context(open_for_all(place, settings, overwrite=overwrite))
        tracking = stack.enter_context(Tracking(trackers, settings, directory.path, progress.note))
        if overwrite:  # what is there from now on is this command's own
            interruption.continues = "the same command without --overwrite"
        experiment = replace(experiment, workdir=directory, track=tracking.log)
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


def present(progress: RunProgress, place: Path, *, is_temporary: bool = False) -> Run:
    """Print and return the results of a finished run; say so if the folder is a result's own."""
    # Here, because a mistake need not wait for what reports import.
    from jaxfed.reports.names import REMARK, marked

    run = read_run(place)
    summary = run.summary or {}
    lines = [f"{REMARK[1:]} {line}" for line in summary.get("remarks", ())]
    where = in_words(place, is_temporary=is_temporary)
    progress.show_results(summary["algorithms"], where, marked(run), remarks=lines)
    return run


def in_words(place: Path, *, is_temporary: bool) -> str:
    """Name the folder of the results, and how long it lasts if a result owns it."""
    if not is_temporary:
        return str(place)
    return f"{place}, a temporary folder that is deleted with the result; workdir=FOLDER keeps them"
