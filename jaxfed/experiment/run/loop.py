"""Training loop of an experiment: restore, play, evaluate, log, checkpoint. It knows no method by name.

    for repeat in range(num_repeats):                              # seed + repeat
        for name in (algorithm, *baselines):
            state = init(fold_in(key, 0), federation)
            for round in 1 .. rounds:
                state = round(state, cohort, fold_in(key, round))

All methods of a repeat see the same clients, cohorts and keys. The exceptions are proportional sampling,
where methods that need labels draw separate cohorts (`jaxfed.federation.rounds`), and asynchronous rounds,
whose clients are those that arrive (`jaxfed.federation.clock`).

Steps and checkpoints: an experiment numbers all its rounds as steps 1 .. num_repeats * methods * rounds.
Each step appends its line to metrics.jsonl. After some steps (`jaxfed.host.checkpoint`) a checkpoint
stores a snapshot of the state and a mark of metrics.jsonl; it is written while the next rounds run. Lines of
rounds that a killed process has lost are dropped when the experiment resumes. A process that receives a stop
signal saves the current round first. All randomness derives from `seed`, `repeat` and `round`, so a resumed
experiment produces the numbers of an uninterrupted one, except for times.

Model selection: a method that validates stores the state with the best `dataset.validation_measure` (the
earlier one in a tie), beside the current one. After the last round only the best state is evaluated on the
test set. The initial state is the first candidate; its line has round 0. (XCLP, 4.2: "automatic model
selection" falls back to the supervised model. The authors' code begins to select at round 10, and takes the
later one in a tie.) With `evaluate_test`, each evaluated round's line has `round_test_accuracy`; nothing is
selected by it.

A method whose `train_loss` is no longer finite stops after that round, because NaN parameters stay NaN. Its
line contains `diverged`; it has no final metrics in that repeat and saves no state. A method with per-client
models continues to its last round, because any client may recover. A one-shot method runs a single round when
every client takes part in each round (`rounds_of`), as a second one would repeat it.

Of several processes the workdir belongs to the first one (`open_for_all`), and all stop together.

`seconds` is the time since the previous line, or since the method was ready to start. It covers the round,
its evaluation, the checkpoint after the previous round, and compilation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, product
from operator import attrgetter
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.assembly import in_time, make_algorithm
from jaxfed.config.data.preprocessing import Report
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.run.save_outputs import save_outputs
from jaxfed.experiment.run.simulate import Plan, method_rounds
from jaxfed.experiment.run.summary import Record, divergence, summarize
from jaxfed.experiment.store.workdir import PARTITION, Workdir, plain, write_json
from jaxfed.federation.algorithm import FederatedAlgorithm, attribute_of, rounds_of
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock import Schedule
from jaxfed.federation.rounds import Played
from jaxfed.host.checkpoint import Checkpoint, Checkpoints, CheckpointWriter
from jaxfed.host.interruption import Interruption
from jaxfed.host.parallel import processes

# (config, name, federation, repeat, ...) -> the method's algorithm, as `make_algorithm`
Make = Callable[..., FederatedAlgorithm]


class Observed(NamedTuple):
    """Argument of an observer of rounds: the method, its clients, the round and the last round's number."""

    repeat: int
    name: str
    algorithm: FederatedAlgorithm
    federation: Federation
    played: Played
    last_round: int


class Made(NamedTuple):
    """A method of one repeat before its first round: its config, clients, and rounds in simulated time."""

    config: ConfigDict
    federation: Federation
    algorithm: FederatedAlgorithm
    schedule: Schedule | None = None


def made(
    config: ConfigDict,
    name: str,
    federation: Federation,
    repeat: int = 0,
    make: Make = make_algorithm,
) -> Made:
    """Make a method for the clients of a repeat, or refuse a value or these examples."""
    seen = methods.with_own_training(config, name)
    federation = methods.clients_for(seen, name, federation)
    algorithm = make(config, name, federation, repeat)
    if not isinstance(algorithm, FederatedAlgorithm):
        raise UsageError(
            f"the factory of {name!r} returned {type(algorithm).__name__}; return a FederatedAlgorithm"
        )
    rounds = rounds_of(algorithm, config.rounds, config.cohort_size, federation.num_clients)
    if rounds != config.rounds:
        seen = seen.copy_and_resolve_references()
        seen.rounds = rounds
    algorithm, schedule = in_time(seen, name, algorithm, federation, config.seed + repeat)
    return Made(seen, federation, algorithm, schedule)


def first_repeat(
    config: ConfigDict,
    simulation: Simulation,
    make: Make = make_algorithm,
    report: Report = lambda done, total: None,
) -> dict[str, Made]:
    """Make the clients and the methods of the first repeat, before a run makes its workdir, or refuse them.

    With `preprocessing.kind="federated_features"` only the model that computes features is made here, as
    methods need the features. `report` receives the progress of preprocessing.
    """
    if config.preprocessing.kind == "federated_features":
        simulation.feature_training(config.seed)
        return {}
    federation = simulation.federation(config.seed, report)
    return {name: made(config, name, federation, 0, make) for name in methods.chosen(config)}


class MethodRun(NamedTuple):
    """Rounds of one method in one repeat: the steps `first_step` .. `last_step` of the experiment."""

    repeat: int
    name: str
    first_step: int
    last_step: int


def method_runs(config: ConfigDict) -> list[MethodRun]:
    """Return the runs of the methods in order: repeats in the outer loop, methods in the inner one."""
    pairs = product(range(config.num_repeats), methods.chosen(config))
    rounds = config.rounds
    return [MethodRun(*pair, i * rounds + 1, (i + 1) * rounds) for i, pair in enumerate(pairs)]


@dataclass(frozen=True)
class Experiment:
    """One experiment: a config that was checked, its simulated clients and its workdir.

    Attributes:
        simulation: a `Simulation`, or what has its `federation`, `numbers`, `names`, `data_checksums` and
            `class_counts`.
        observe: called with every round that has not diverged, before the round counts as finished.
        make: makes a method's algorithm.
        track: called with every line that has been added to metrics.jsonl.
        first: the methods of the first repeat that are made already (`first_repeat`).
    """

    config: ConfigDict
    simulation: Any
    workdir: Workdir
    progress: RunProgress
    interruption: Interruption
    observe: Callable[[Observed], None] = lambda observed: None
    make: Make = make_algorithm
    track: Callable[[Record], None] = lambda record: None
    first: dict[str, Made] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Run the remaining rounds and return the results (`summarize`).

        Raises:
            UsageError: an algorithm cannot work with the data; damaged files, or other data than before.
            OSError: the disk is full, for example; files saved before are unchanged.
            Interrupted: the process received a stop signal; all finished rounds are saved.
        """
        self.workdir.check_data(self.simulation.data_checksums())
        checkpoints = Checkpoints(self.workdir.checkpoints)
        saved = checkpoints.latest(lambda progress: self.workdir.objection(progress["metrics"]))
        saved_step = saved.progress["step"] if saved else 0
        self.workdir.restore_metrics(saved.progress["metrics"] if saved else None)
        self.progress.resumed(saved_step)
        left = (run for run in method_runs(self.config) if run.last_step > saved_step)
        with CheckpointWriter(checkpoints, self.config.checkpoint_every) as saves:
            for repeat, runs_of_repeat in groupby(left, key=attrgetter("repeat")):
                self.progress.working_on("preparing data")
                federation = self.simulation.federation(
                    self.config.seed + repeat,
                    self.progress.prepared,
                    self.workdir.preprocessing(repeat),
                )
                if repeat == 0:
                    counts = self.simulation.class_counts(federation)
                    write_json(self.workdir.path / PARTITION, counts)
                for run in runs_of_repeat:
                    self._run_method(run, federation, saved, saves)
        return summarize(self.config, self.workdir.read_metrics())

    @property
    def make_shown(self) -> Make:
        """`make` of algorithms that show their progress within a round."""
        return partial(self.make, progress=self.progress.within)

    def _run_method(
        self,
        run: MethodRun,
        federation: Federation,
        saved: Checkpoint | None,
        saves: CheckpointWriter,
    ) -> None:
        """Run one method to its last round, starting from the saved step if that is within this run."""
        self.progress.working_on(f"repeat {run.repeat + 1}/{self.config.num_repeats} {run.name}")
        ready = self.first.pop(run.name, None) if run.repeat == 0 else None
        config, federation, algorithm, schedule = ready or made(
            self.config, run.name, federation, run.repeat, self.make_shown
        )
        rounds, whose = config.rounds, (run.repeat, run.name)
        very_last = method_runs(self.config)[-1].last_step
        finished = max((saved.progress["step"] if saved else 0) + 1 - run.first_step, 0)
        measured = method_rounds(
            algorithm,
            federation,
            Plan(
                *(config, rounds, config.evaluate_every, config.evaluate_test),
                *(config.dataset.validation_measure, schedule),
            ),
            config.seed + run.repeat,
            finished=finished,
            resumed=(lambda first: saved.state(template=first)) if saved and finished else None,
            observe=lambda played: self.observe(
                Observed(*whose, algorithm, federation, played, rounds)
            ),
            at_end=attribute_of(algorithm.evaluate, "of_clients"),
        )
        with closing(measured):
            if algorithm.validate and not finished:
                first = next(measured).record
                if len(first) > 1:  # there is something to validate on
                    self._write({"repeat": run.repeat, "algorithm": run.name, **first})
            for round_number in range(finished + 1, rounds + 1):
                with self.interruption.deferred():
                    selected, numbers, _ = next(measured)
                    is_last = round_number == rounds
                    record = {"repeat": run.repeat, "algorithm": run.name, **numbers}
                    agree(self.interruption, record)
                    self._write(record)
                    if "diverged" in record:
                        self.progress.stopped(divergence(self.config, record), run.last_step)
                        return
                    if is_last:
                        save_outputs(
                            *(self.workdir, run.name, run.repeat, config),
                            *(selected, algorithm, federation, self.simulation),
                        )
                    step = run.last_step if is_last else run.first_step + round_number - 1
                    ends = self.interruption.is_pending or step == very_last
                    if ends or saves.are_due(round_number, is_last=is_last):
                        progress = {"step": step, "metrics": self.workdir.metrics_mark()}
                        saves.save(step, selected, progress, at_once=ends)
                    self.progress.finished_round(record, rounds)
            self.progress.completed(run.last_step)

    def _write(self, record: Record) -> None:
        self.workdir.append_metrics(record)
        self.track(record)


def agree(interruption: Interruption, record: Record) -> None:
    """Check that all processes have computed the numbers of a round, and share pending signals.

    Without the comparison, processes with different numbers would go unnoticed.
    """
    if processes.are_several():
        measured = {k: json.dumps(plain(v)) for k, v in record.items() if k != "seconds"}
        processes.check_same({f"round {record['round']}: {k}": v for k, v in measured.items()})
        signals = processes.gather_texts(str(interruption.pending or 0))
        interruption.settle(max(map(int, signals)))
