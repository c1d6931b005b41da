"""Rounds of one method: play them, measure their states, select the best one; and `simulate`, without files.

    federation = Federation.from_clients(clients, test=(x_test, y_test))
    training = Training(from_flax(Net, x_test.shape[1:]))
    result = simulate(fedavg(training=training), federation, rounds=50, cohort_size=10)

`simulate` runs a method on user-defined clients, without a config. Experiments consume the same rounds
(`method_rounds`): the same seed produces bit-identical numbers to an experiment with one repeat. The selected
state is the best one on validation examples, else the last one; it alone is tested in the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import (
    HAS_NO_MODEL,
    FederatedAlgorithm,
    Metrics,
    Predictions,
    ServerState,
    attribute_of,
    check_rounds,
    has_diverged,
    rounds_of,
)
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock import Clock, Schedule, schedule_of
from jaxfed.federation.evaluate import MEASURES, evaluated_by
from jaxfed.federation.rounds import Played, Sampling, cohorts_of, is_judged, play, watched
from jaxfed.settings import Count, CountOrZero, hinted


class Selected(NamedTuple):
    """A method's current state and, if it validates, the best so far. Checkpoints store this tuple.

    `best` is the best state by `dataset.validation_measure`, reduced to what evaluation reads
    (`evaluated_by`); () for a method that does not validate.
    """

    state: ServerState
    best: ServerState
    validation_accuracy: float  # the measure of `best`; -1 before the first
    round: int  # of `best`

    @property
    def final(self) -> ServerState:
        """The best state, or the newest one if the method does not validate."""
        return self.best if self.is_selecting else self.state

    @property
    def is_selecting(self) -> bool:
        """True if the method validates; its state may be any pytree, including a bare array."""
        return not (isinstance(self.best, tuple) and not self.best)

    def after(
        self,
        round_number: int,
        state: ServerState,
        metrics: Metrics,
        evaluated: Callable[[ServerState], ServerState] = lambda state: state,
        measure: str = "accuracy",
    ) -> Selected:
        """Return the selection after a round; without validation examples the newest state is the best."""
        accuracy = metrics.get(f"validation_{measure}", np.inf)
        if accuracy <= self.validation_accuracy < np.inf:
            return self._replace(state=state)
        return Selected(state, evaluated(state), float(accuracy), round_number)


def validated(
    algorithm: FederatedAlgorithm, state: ServerState, federation: Federation, measure: str | None
) -> Metrics:
    """Return a method's metrics on the validation examples, including the measure (`MEASURES`) if given."""
    metrics = algorithm.validate(state, federation) if algorithm.validate else {}
    if not metrics or measure is None or f"validation_{measure}" in metrics:
        return metrics
    if algorithm.predict is None:
        raise UsageError(
            f"{algorithm.name or 'the method'} does not measure it",
            key="config.dataset.validation_measure",
            value=measure,
            allowed="use 'accuracy'",
        )
    split = federation.validation
    probability = algorithm.predict(state, federation.examples(split))
    return {**metrics, f"validation_{measure}": MEASURES[measure](probability, federation.y[split])}


class Plan(NamedTuple):
    """Rounds of a method, and when their states are measured; arguments are those of `simulate`."""

    sampling: Sampling | ConfigDict
    rounds: int
    evaluate_every: int
    evaluate_test: bool
    measure: str | None = None  # on validation examples, selects the state; None: accuracy
    schedule: Schedule | None = None  # None: no simulated time


class Measured(NamedTuple):
    """A finished round.

    Fields:
        selected: the states after it.
        record: `round`, the round's metrics and those of its state, `seconds`. Round 0 is the initial state,
            which has validation metrics alone. `diverged` is True in a round whose loss is not finite.
        tested: after the last round, test metrics of the selected state, which the record has too; else {}.
    """

    selected: Selected
    record: dict[str, Any]
    tested: Metrics


def method_rounds(
    algorithm: FederatedAlgorithm,
    federation: Federation,
    plan: Plan,
    seed: int,
    *,
    finished: int = 0,
    resumed: Callable[[Selected], Selected] | None = None,
    observe: Callable[[Played], None] = lambda played: None,
    at_end: Callable[[ServerState, Federation], Metrics] | None = None,
) -> Generator[Measured]:
    """Play and measure a method's rounds; a round that diverges is the last one.

    Args:
        algorithm: the method.
        federation: its clients.
        plan: number of rounds, cohorts and measurements.
        seed: determines all randomness.
        finished: number of rounds that were played before.
        resumed: returns the states after them, given others of their form; None: begin with the first.
        observe: called with every round that has not diverged.
        at_end: further metrics of the selected state after the last round.
    """
    cohort_of = cohorts_of(algorithm, federation, plan.sampling, seed, plan.rounds)
    if plan.schedule is not None:
        cohort_of = plan.schedule.cohorts(federation)
    key = jax.random.key(seed)
    state = algorithm.init(jax.random.fold_in(key, 0), federation)
    best = evaluated_by(algorithm)(state) if algorithm.validate else ()
    selected = Selected(state, best, -1.0, 0)
    if resumed is not None:
        selected = resumed(selected)
    elif algorithm.validate:
        selected, quality, _ = _measured(algorithm, federation, plan, 0, state, selected)
        yield Measured(selected, {"round": 0, **quality}, {})
    del state, best  # or they would keep every row that changes
    numbers = range(finished + 1, plan.rounds + 1)
    playing = play(algorithm, selected.state, numbers, cohort_of=cohort_of, key=key)
    if plan.schedule is not None:
        playing = plan.schedule.timed(playing)
    with closing(playing):
        ended = time.perf_counter()
        for played in playing:
            number, metrics, tested = played.round, played.metrics, Metrics()
            if has_diverged(metrics):
                quality = {"diverged": True}
            else:
                observe(played)
                selected, quality = selected._replace(state=played.after), {}
                if is_judged(algorithm, number, plan.rounds, plan.evaluate_every):
                    selected, quality, tested = _measured(
                        algorithm, federation, plan, number, played.after, selected
                    )
                    if at_end is not None and number == plan.rounds:
                        quality |= at_end(selected.final, federation)
            before_this, ended = ended, time.perf_counter()
            record = {"round": number, **metrics, **quality, "seconds": ended - before_this}
            del played
            yield Measured(selected, record, tested)
            if "diverged" in quality:
                return


def _measured(
    algorithm: FederatedAlgorithm,
    federation: Federation,
    plan: Plan,
    number: int,
    state: ServerState,
    selected: Selected,
) -> tuple[Selected, Metrics, Metrics]:
    """Measure the state after a round, and after the last one the selected state on the test set."""
    measure = plan.measure or "accuracy"
    seen: Metrics = {}
    if plan.evaluate_test or algorithm.validate is None:
        seen = algorithm.evaluate(state, federation)
    if algorithm.validate is None:
        return selected, {**seen}, seen if number == plan.rounds else {}
    metrics = {**validated(algorithm, state, federation, plan.measure)}
    selected = selected.after(number, state, metrics, evaluated_by(algorithm), measure)
    metrics |= watched(seen)
    if number < plan.rounds:
        return selected, metrics, {}
    is_known = selected.best is state and plan.evaluate_test
    tested = seen if is_known else algorithm.evaluate(selected.best, federation)
    metrics |= {**tested, "selected_round": selected.round}
    if np.isfinite(selected.validation_accuracy):  # there is a validation split
        metrics[f"selected_validation_{measure}"] = selected.validation_accuracy
    return selected, metrics, tested


@dataclass(frozen=True, repr=False)
class Simulated:
    """Result of a simulation.

    Attributes:
        algorithm: the method.
        federation: the clients.
        state: the state that validation selected, without what evaluation does not read
            (`evaluated_by`); the last one if the method does not validate.
        last_state: after the last round.
        metrics: final metrics of `state`: `test_accuracy` and others.
        records: one for each round: `round`, `seconds` including evaluation, the round's metrics, and those
            of the state if it was evaluated. Round 0 is the initial state. The last one has `metrics` too.
    """

    algorithm: FederatedAlgorithm
    federation: Federation
    state: ServerState
    last_state: ServerState
    metrics: Metrics
    records: list[dict[str, Any]]

    def __repr__(self) -> str:
        """One line: the method, its rounds, its final metrics."""
        numbers = (f"{k} {v:.4f}" for k, v in self.metrics.items() if isinstance(v, int | float))
        rounds = max((record["round"] for record in self.records), default=0)
        shown = ", ".join(numbers) or "no metrics"
        return f"Simulated({self.algorithm.name or 'a method'}, {rounds} rounds: {shown})"

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return class probabilities, float32 [n, C], of any examples [n, ...].

        Raises:
            UsageError: the method has no model for points that no client holds; examples of another shape.
        """
        if self.algorithm.predict is None:
            raise UsageError(
                "predict: this method labels the points that its clients hold; see `predictions`"
            )
        like_these = self.federation.examples_like_these(x, "predict")
        return self.algorithm.predict(self.state, like_these)

    def predictions(self) -> Predictions:
        """Return the predictions for all points that the method labels or is tested on."""
        table: Callable[..., Predictions] = attribute_of(self.algorithm.evaluate, "predictions")
        return table(self.state, self.federation)


@hinted
def simulate(
    algorithm: FederatedAlgorithm,
    federation: Federation,
    *,
    rounds: Count = 1,
    cohort_size: CountOrZero = 0,
    sampling: Literal["uniform", "proportional"] = "uniform",
    seed: CountOrZero = 0,
    evaluate_every: CountOrZero = 0,
    evaluate_test: bool = False,
    clock: Clock | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> Simulated:
    """Run a method for some rounds.

    Args:
        algorithm: the method.
        federation: the clients.
        rounds: number of rounds; a one-shot method runs a single one if `cohort_size` is all clients.
        cohort_size: clients in a round; 0 is all.
        sampling: of clients, see `sample_clients`.
        seed: determines all randomness.
        evaluate_every: evaluate the state on validation examples every `evaluate_every` rounds; 0 is after
            the last one only.
        evaluate_test: evaluate it on the test examples at these rounds too, as `round_test_accuracy`, for
            curves; it selects nothing.
        clock: speeds of clients, for simulated time; None: none.
        on_round: called with every record as it is made.

    Raises:
        UsageError: the method cannot work with these clients, examples, classes or this clock; nobody has a
            label; the loss is no longer finite; no client has a model in the end.
    """
    _check(algorithm, federation, cohort_size)
    if attribute_of(algorithm.round, "has_stage_2"):
        stage_1 = attribute_of(algorithm.round, "stage_1")
        check_rounds(stage_1, rounds, "rounds", "Training.labeled_only_rounds")
    chosen = Sampling(cohort_size, sampling)
    rounds = rounds_of(algorithm, rounds, cohort_size, federation.num_clients)
    algorithm, schedule = schedule_of(clock or Clock(), algorithm, federation, chosen, seed, rounds)
    plan = Plan(chosen, rounds, evaluate_every, evaluate_test, schedule=schedule)
    if evaluate_test and not len(federation.test):
        raise UsageError(
            "simulate: evaluate_test=True: there are no test examples; give test=(x, y) to the federation"
        )
    records: list[dict[str, Any]] = []
    with closing(method_rounds(algorithm, federation, plan, seed)) as measured:
        for selected, record, tested in measured:  # noqa: B007, the last one counts
            if record.get("diverged"):
                raise UsageError(
                    f"simulate: diverged in round {record['round']}, its loss is not finite; lower the "
                    "learning rate, or scale the features"
                )
            if len(record) == 1:  # of the initial state, without validation examples
                continue
            records.append(record)
            if on_round is not None:
                on_round(record)
    if tested.get(HAS_NO_MODEL):
        raise UsageError(
            f"simulate: no client has a model after round {rounds}; the warnings say why"
        )
    return Simulated(algorithm, federation, selected.final, selected.state, tested, records)


def _check(algorithm: FederatedAlgorithm, federation: Federation, cohort_size: int) -> None:
    for value, kind in ((algorithm, FederatedAlgorithm), (federation, Federation)):
        if not isinstance(value, kind):
            raise UsageError(f"simulate: {type(value).__name__} is given for a {kind.__name__}")
    if cohort_size > federation.num_clients:
        allowed = f"use 1 to {federation.num_clients}, and 0 for all"
        raise UsageError(key="cohort_size", owner="simulate", value=cohort_size, allowed=allowed)
    if not any(map(len, federation.partition.labeled)) and not len(federation.server):
        raise UsageError(
            "simulate: nobody has a label, neither clients nor the server: give the federation labels from 0 "
            "on beside -1, or server=(x, y)"
        )
