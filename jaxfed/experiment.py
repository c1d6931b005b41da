"""The only round loop: restore, cohort, round, evaluate, log, checkpoint; no method by name.

    for repeat in range(num_repeats):                              # seed + repeat
        for name in (algorithm, *baselines):
            state = init(fold_in(key, 0), federation)
            for round in 1 .. rounds:
                state = round(state, cohort, fold_in(key, round))

All methods of a repeat see the same clients, the same cohorts and the same keys. The rounds of an
experiment have one numbering, its steps 1 .. num_repeats * methods * rounds. After each step its
line is in metrics.jsonl, and a checkpoint holds the state and how many bytes of metrics.jsonl
belong to it: a process that is killed at any instant loses the current round, and what it had
written of that round is dropped when the experiment resumes. Everything random follows from `seed`,
`repeat` and `round`, so a resumed experiment ends with the numbers of one that was never stopped,
times apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, product
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.checkpoint import Checkpoints
from jaxfed.federated_algorithm import FederatedAlgorithm
from jaxfed.federation import Federation
from jaxfed.interruption import Interruption
from jaxfed.progress import Progress
from jaxfed.reports.runs import flatten, measure
from jaxfed.simulation import Simulation
from jaxfed.workdir import Workdir

Record = dict[str, Any]  # one line of metrics.jsonl


class Leg(NamedTuple):
    """One method in one repeat: the steps `first_step` .. `last_step` of the experiment."""

    repeat: int
    name: str
    first_step: int
    last_step: int


def legs(config: ConfigDict) -> list[Leg]:
    """The experiment's legs in their order: repeats outside, methods inside."""
    pairs = product(range(config.num_repeats), (config.algorithm, *config.baselines))
    rounds = config.rounds
    return [
        Leg(repeat, name, index * rounds + 1, (index + 1) * rounds)
        for index, (repeat, name) in enumerate(pairs)
    ]


@dataclass(frozen=True)
class Experiment:
    """What a config describes, in the directory where it happens.

    Attributes:
        config: resolved and checked (`jaxfed.config_check`).
        simulation: gives each repeat its clients.
        workdir: where metrics and checkpoints go.
        progress: told of every round.
        interruption: signals wait until the round they arrive in is saved.
    """

    config: ConfigDict
    simulation: Simulation
    workdir: Workdir
    progress: Progress
    interruption: Interruption

    def run(self) -> dict[str, Any]:
        """Run it, or what is left of it, and return its results (`summarize`).

        Raises:
            UsageError: an algorithm cannot work with the data it is given.
            Interrupted: the process was asked to stop; all finished rounds are saved.
        """
        with Checkpoints(self.workdir.checkpoints) as checkpoints:
            saved = checkpoints.latest_progress() or {"step": 0, "metrics_bytes": 0}
            self.workdir.truncate_metrics(saved["metrics_bytes"])
            self.progress.resumed(saved["step"])
            left = [leg for leg in legs(self.config) if leg.last_step > saved["step"]]
            for repeat, legs_of_repeat in groupby(left, key=attrgetter("repeat")):
                federation = self._federation(repeat)
                for leg in legs_of_repeat:
                    self._run_leg(leg, federation, checkpoints, saved["step"])
        return summarize(self.config, self.workdir.read_metrics())

    def _federation(self, repeat: int) -> Federation:
        self.progress.working_on("preparing data")
        federation = self.simulation.federation(self.config.seed + repeat, self.progress.prepared)
        if repeat == 0:
            self.workdir.write_partition(self.simulation.class_counts(federation))
        return federation

    def _run_leg(
        self, leg: Leg, federation: Federation, checkpoints: Checkpoints, saved_step: int
    ) -> None:
        """Run one method to its last round, from the saved step where that lies in this leg."""
        config = self.config
        self.progress.working_on(f"repeat {leg.repeat + 1}/{config.num_repeats} {leg.name}")
        algorithm = make_algorithm(config, leg.name, federation.num_classes)
        seed = config.seed + leg.repeat
        key = jax.random.key(seed)
        state = algorithm.init(jax.random.fold_in(key, 0), federation)
        if saved_step >= leg.first_step:
            state = checkpoints.latest_state(template=state)
        for step in range(max(leg.first_step, saved_step + 1), leg.last_step + 1):
            round_number = step - leg.first_step + 1
            with self.interruption.deferred():
                started = time.perf_counter()
                cohort = federation.cohort(sample_clients(config, federation, seed, round_number))
                state, metrics = algorithm.round(
                    state, cohort, jax.random.fold_in(key, round_number)
                )
                jax.block_until_ready(state)
                seconds = time.perf_counter() - started
                if is_evaluated(config, round_number):
                    metrics = {**metrics, **algorithm.evaluate(state, federation)}
                record = {
                    "repeat": leg.repeat,
                    "algorithm": leg.name,
                    "round": round_number,
                    **metrics,
                    "seconds": seconds,
                }
                metrics_bytes = self.workdir.append_metrics(record)
                checkpoints.save(step, state, {"step": step, "metrics_bytes": metrics_bytes})
                self.progress.finished_round(record)


def make_algorithm(config: ConfigDict, name: str, num_classes: int) -> FederatedAlgorithm:
    """The method of this name with the keywords of its section in the config."""
    return ALGORITHMS[name](num_classes=num_classes, **config.get(name, {}))


def sample_clients(
    config: ConfigDict, federation: Federation, seed: int, round_number: int
) -> list[int]:
    """The round's clients, ascending: `cohort_size` drawn without replacement, 0 is all."""
    if not 0 < config.cohort_size < federation.num_clients:
        return list(range(federation.num_clients))
    rng = np.random.default_rng((seed, round_number))
    return sorted(rng.choice(federation.num_clients, config.cohort_size, replace=False).tolist())


def is_evaluated(config: ConfigDict, round_number: int) -> bool:
    """Whether the state is judged after this round: the last one, and every `evaluate_every`-th."""
    every = config.evaluate_every
    return round_number == config.rounds or (every > 0 and round_number % every == 0)


def summarize(config: ConfigDict, records: Iterable[Record]) -> dict[str, Any]:
    """The final metrics, from the lines of metrics.jsonl alone.

    A method's metrics in one repeat are those of its last round; seconds and bytes are summed over
    its rounds.

    Returns:
        `algorithms`: method -> metric -> {mean, std, values}, over repeats, std with divisor n - 1
        (None for one repeat), nested as the metrics are. On top, of `config.algorithm`: each
        `test_` metric's mean and, under `..._std`, deviation; `communication`'s mean bytes.
        `seconds`: all rounds of all methods.
    """
    finals: dict[str, dict[int, dict[str, Any]]] = {}
    for record in records:
        repeats = finals.setdefault(record["algorithm"], {})
        repeats[record["repeat"]] = _accumulated(repeats.get(record["repeat"], {}), record)
    algorithms = {name: _over_repeats(list(repeats.values())) for name, repeats in finals.items()}
    main = algorithms[config.algorithm]
    summary: dict[str, Any] = {"algorithm": config.algorithm, "num_repeats": config.num_repeats}
    for metric in (name for name in main if name.startswith("test_")):
        summary |= {metric: main[metric]["mean"], f"{metric}_std": main[metric]["std"]}
    summary["seconds"] = sum(sum(metrics["seconds"]["values"]) for metrics in algorithms.values())
    if "communication" in main:
        summary["communication"] = {
            name: main["communication"][name]["mean"] for name in ("upload_bytes", "download_bytes")
        }
    return {**summary, "algorithms": algorithms}


def _accumulated(so_far: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """A method's metrics after one more round, flat: seconds and bytes add up, others do not."""
    metrics = {
        name: value
        for name, value in flatten(record)
        if name not in ("repeat", "algorithm", "round")
    }
    for name in metrics:
        if name == "seconds" or name.startswith("communication."):
            metrics[name] += so_far.get(name, 0)
    return metrics


def _over_repeats(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Metric -> {mean, std, values}, nested by the dots in the metrics' names."""
    nested: dict[str, Any] = {}
    for metric in dict.fromkeys(name for metrics in repeats for name in metrics):
        *parents, name = metric.split(".")
        section = nested
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = _measured([metrics.get(metric) for metrics in repeats])
    return nested


def _measured(values: list[float | None]) -> dict[str, Any]:
    """Mean and deviation; None where a repeat has no value (an accuracy over no point, say)."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return {"mean": None, "std": None, "values": values}
    mean, std, _ = measure(known)
    return {"mean": mean, "std": std, "values": values}
