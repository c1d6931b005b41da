"""An experiment's rounds: restore, play, judge, log, checkpoint; no method by name.

    for repeat in range(num_repeats):                              # seed + repeat
        for name in (algorithm, *baselines):
            state = init(fold_in(key, 0), federation)
            for round in 1 .. rounds:
                state = round(state, cohort, fold_in(key, round))

All methods of a repeat see the same clients, the same cohorts and the same keys; only with
`labeled_cohorts` those that need labels have cohorts of their own (`jaxfed.federation.sampling`). The
rounds of an experiment have one numbering, its steps 1 .. num_repeats * methods * rounds. After each step its
line is in metrics.jsonl; after some (`jaxfed.host.save_schedule`) a checkpoint holds the state and what of
metrics.jsonl belongs to it, both as they are then, though it is written while the next rounds run
(`jaxfed.host.checkpoint_writer`). A process that is killed at any instant loses the rounds since the newest
that is whole, ten seconds of work or one round (more of states that are slow to save), and what it had
written of them is dropped when the experiment resumes. One that is asked to stop saves the round it is in.
While the device works on a round, the host prepares the cohort of the next.

A method with a validation measure is selected by it: the state with the best `validation_accuracy`
(the earlier of equals) is kept beside the current one, and after the last round it alone is measured
on the test set. The state that a method starts from is the first candidate; its line has round 0 and
nothing but what validation says, and rounds that only did harm are reported as round 0. (XCLP, 4.2:
"automatic model selection" falls back to the supervised model; its authors' code begins to select at
round 10, and takes the later of equals.) The state that was selected, and the last one, stay under
states/.

With `evaluate_test` the test set is looked at while training, too: whenever a state is judged, the line has
what the test set says of that round's state (`round_test_accuracy`), which nothing is selected by.
`test_accuracy` is always that of the state that counts. The last line has, beside it, what clients get
each: the worst, the tenth percentile and the mean over clients of their accuracies, and all of them.

A method whose `train_loss` is no longer finite stops after that round: a model that is not a number can
only stay so. Its line says `diverged`, it has no final metrics in that repeat and leaves no state; the
other methods, and its other repeats, go on. A method whose clients have models of their own goes on to its
last round, for any client may recover; that it has no model then, or that its last round failed at every
client, is said with its results (`jaxfed.experiment.summary`).

A one-shot method has one round where a round has all clients (`rounds_of`): a second one would do the same
again, and count its messages twice. The steps that it does not need are passed over.

`seconds` of a line are all that has passed since the line before, or since the method was ready to start:
the round, what judges it, and the save after the round before. Compilation is in them.

Everything random follows from `seed`, `repeat` and `round`, so a resumed experiment ends with the
numbers of one that was never stopped, times apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, product
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.simulation import Simulation
from jaxfed.errors import BeyondMemory
from jaxfed.experiment.method_end import leave_predictions, leave_states
from jaxfed.experiment.processes import agree
from jaxfed.experiment.progress import Progress
from jaxfed.experiment.selected import Selected
from jaxfed.experiment.summary import divergence, summarize
from jaxfed.experiment.workdir import Workdir
from jaxfed.federation.algorithm import (
    HAS_NO_MODEL,
    FederatedAlgorithm,
    Metrics,
    ServerState,
    has_diverged,
    rounds_of,
)
from jaxfed.federation.clients import Federation
from jaxfed.federation.rounds import Played, cohorts_of, is_judged, play
from jaxfed.host.checkpoint import Checkpoint, Checkpoints
from jaxfed.host.checkpoint_writer import CheckpointWriter
from jaxfed.host.interruption import Interruption


class Observed(NamedTuple):
    """A round as an observer is shown it: the method, its clients, the round and the number of the last."""

    repeat: int
    name: str
    algorithm: FederatedAlgorithm
    federation: Federation
    played: Played
    last_round: int


class Leg(NamedTuple):
    """One method in one repeat: the steps `first_step` .. `last_step` of the experiment."""

    repeat: int
    name: str
    first_step: int
    last_step: int


def legs(config: ConfigDict) -> Iterator[Leg]:
    """The experiment's legs in their order: repeats outside, methods inside."""
    pairs = product(range(config.num_repeats), methods.chosen(config))
    rounds = config.rounds
    for index, (repeat, name) in enumerate(pairs):
        yield Leg(repeat, name, index * rounds + 1, (index + 1) * rounds)


def num_steps(config: ConfigDict) -> int:
    """The number of the experiment's last step."""
    return int(config.num_repeats * len(methods.chosen(config)) * config.rounds)


@dataclass(frozen=True)
class Experiment:
    """What a config describes, in the directory where it happens.

    Attributes:
        config: resolved and checked (`jaxfed.config.check`).
        simulation: gives each repeat its clients.
        workdir: where metrics and checkpoints go.
        progress: told of every round.
        interruption: signals wait until the round they arrive in is saved.
        observe: told of every round that has not diverged, before it counts as finished.
    """

    config: ConfigDict
    simulation: Simulation
    workdir: Workdir
    progress: Progress
    interruption: Interruption
    observe: Callable[[Observed], None] = lambda observed: None

    def run(self) -> dict[str, Any]:
        """Run it, or what is left of it, and return its results (`summarize`).

        Raises:
            UsageError: an algorithm cannot work with the data it is given; what is there of the run
                is damaged, or was computed on other data.
            OSError: the disk is full, say; what was saved before is as it was.
            Interrupted: the process was asked to stop; all finished rounds are saved.
        """
        self.workdir.check_data(self.simulation.data_checksums())
        checkpoints = Checkpoints(self.workdir.checkpoints)
        saved = checkpoints.to_resume(lambda progress: self.workdir.objection(progress["metrics"]))
        saved_step = saved.progress["step"] if saved else 0
        self.workdir.restore_metrics(saved.progress["metrics"] if saved else None)
        self.progress.resumed(saved_step)
        left = (leg for leg in legs(self.config) if leg.last_step > saved_step)
        with CheckpointWriter(checkpoints, self.config.checkpoint_every) as saves:
            for repeat, legs_of_repeat in groupby(left, key=attrgetter("repeat")):
                federation = self._federation(repeat)
                for leg in legs_of_repeat:
                    try:
                        self._run_leg(leg, federation, saved, saves)
                    except BeyondMemory as error:
                        raise BeyondMemory(f"config.{error}") from error
        return summarize(self.config, self.workdir.read_metrics())

    def _federation(self, repeat: int) -> Federation:
        self.progress.working_on("preparing data")
        federation = self.simulation.federation(
            self.config.seed + repeat, self.progress.prepared, self.workdir.preprocessing(repeat)
        )
        if repeat == 0:
            self.workdir.write_partition(self.simulation.class_counts(federation))
        return federation

    def _run_leg(
        self,
        leg: Leg,
        federation: Federation,
        saved: Checkpoint | None,
        saves: CheckpointWriter,
    ) -> None:
        """Run one method to its last round, from the saved step where that lies in this leg."""
        config = methods.with_own_training(self.config, leg.name)
        self.progress.working_on(f"repeat {leg.repeat + 1}/{config.num_repeats} {leg.name}")

        def tell(line: str) -> None:
            self.progress.note(f"{leg.name}: {line}")

        algorithm = make_algorithm(
            config, leg.name, federation, leg.repeat, self.progress.within, tell=tell
        )
        rounds = rounds_of(algorithm, config.rounds, config.cohort_size, federation.num_clients)
        if rounds != config.rounds:
            config = config.copy_and_resolve_references()
            config.rounds = rounds
        seed = config.seed + leg.repeat
        key = jax.random.key(seed)
        state = algorithm.init(jax.random.fold_in(key, 0), federation)
        selected = Selected(state, state if algorithm.validate else (), -1.0, 0)
        saved_step = saved.progress["step"] if saved else 0
        if saved and saved_step >= leg.first_step:
            selected = saved.state(template=selected)
        elif algorithm.validate:
            metrics = algorithm.validate(state, federation)
            selected = selected.after(0, state, metrics)
            metrics = {**metrics, **_of_round(self._watched(algorithm, state, federation))}
            if metrics:
                start = {"repeat": leg.repeat, "algorithm": leg.name, "round": 0, **metrics}
                self.workdir.append_metrics(start)

        first_round = max(leg.first_step, saved_step + 1) - leg.first_step + 1
        left = range(first_round, rounds + 1)
        cohort_of = cohorts_of(algorithm, federation, config, seed)
        start = selected.state
        with closing(play(algorithm, start, left, cohort_of=cohort_of, key=key)) as rounds_played:
            ended = time.perf_counter()
            for round_number in left:
                with self.interruption.deferred():
                    played = next(rounds_played)
                    is_last = round_number == rounds
                    if has_diverged(played.metrics):
                        quality: Metrics = {"diverged": True}
                    else:
                        whose = leg.repeat, leg.name, algorithm, federation
                        self.observe(Observed(*whose, played, rounds))
                        selected, quality = self._measure(
                            config, algorithm, federation, round_number, played.after, selected
                        )
                    before_this, ended = ended, time.perf_counter()
                    record = {
                        "repeat": leg.repeat,
                        "algorithm": leg.name,
                        "round": round_number,
                        **played.metrics,
                        **quality,
                        "seconds": ended - before_this,
                    }
                    agree(self.interruption, record)
                    self.workdir.append_metrics(record)
                    if "diverged" in quality:
                        self.progress.stopped(divergence(self.config, record), leg.last_step)
                        return
                    if is_last:
                        whose_end = self.workdir, leg.name, leg.repeat
                        leave_states(*whose_end, config, selected)
                        numbers = self.simulation.numbers
                        leave_predictions(*whose_end, algorithm, federation, numbers, selected)
                    step = leg.last_step if is_last else leg.first_step + round_number - 1
                    ends = self.interruption.is_pending or step == num_steps(self.config)
                    if ends or saves.are_due(round_number, is_last=is_last):
                        progress = {"step": step, "metrics": self.workdir.metrics_mark()}
                        saves.save(step, selected, progress, at_once=ends)
                    self.progress.finished_round(record, rounds)
            self.progress.completed(leg.last_step)

    def _measure(
        self,
        config: ConfigDict,
        algorithm: FederatedAlgorithm,
        federation: Federation,
        round_number: int,
        state: ServerState,
        selected: Selected,
    ) -> tuple[Selected, Metrics]:
        """Judge the state where that is due: by the validation split, and at the end by the test set."""
        if not is_judged(algorithm, round_number, config.rounds, config.evaluate_every):
            return selected._replace(state=state), {}
        is_last = round_number == config.rounds
        if algorithm.validate is None:
            selected, final = selected._replace(state=state), state
            metrics = {**algorithm.evaluate(state, federation)}
        else:
            validation = algorithm.validate(state, federation)
            selected = selected.after(round_number, state, validation)
            final = selected.best
            watched = self._watched(algorithm, state, federation)
            metrics = {**validation, **_of_round(watched)}
            if is_last:
                is_known = final is state and self.config.evaluate_test
                quality = watched if is_known else algorithm.evaluate(final, federation)
                metrics |= {**quality, "selected_round": selected.round}
                if np.isfinite(selected.validation_accuracy):  # there is a validation split
                    metrics["selected_validation_accuracy"] = selected.validation_accuracy
        if is_last and algorithm.evaluate_clients is not None:
            metrics |= algorithm.evaluate_clients(final, federation)
        return selected, metrics

    def _watched(
        self, algorithm: FederatedAlgorithm, state: ServerState, federation: Federation
    ) -> Metrics:
        """With `evaluate_test`, what the test set says of a round's state; nothing is selected by it."""
        return algorithm.evaluate(state, federation) if self.config.evaluate_test else {}


def _of_round(quality: Metrics) -> Metrics:
    """What the test set says, under names that say that nothing is selected by it."""
    return {f"round_{name}": value for name, value in quality.items() if name != HAS_NO_MODEL}
