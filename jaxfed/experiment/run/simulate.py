"""Run a method on user-defined clients, without a config and without files.

    federation = Federation.from_clients(clients, test=(x_test, y_test))
    training = Training(from_flax(Net, x_test.shape[1:]))
    result = simulate(fedavg(training=training), federation, rounds=50, cohort_size=10)

Rounds, cohorts and selection are those of an experiment (`jaxfed.federation.rounds`, `Selected`). The same
seed produces bit-identical numbers to an experiment with one repeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.experiment.run.best_checkpoint import Selected
from jaxfed.federation.algorithm import (
    HAS_NO_MODEL,
    FederatedAlgorithm,
    Metrics,
    Predictions,
    ServerState,
    check_rounds,
    has_diverged,
    rounds_of,
)
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock.schedule import schedule_of
from jaxfed.federation.clock.settings import Clock
from jaxfed.federation.rounds import cohorts_of, is_judged, play, watched
from jaxfed.federation.sampling import SAMPLINGS, Sampling

_MOST_SHOWN = 3  # metrics of a method that is not tested


@dataclass(frozen=True, repr=False)
class Simulated:
    """Result of a simulation.

    Attributes:
        algorithm: the method.
        federation: the clients.
        state: the state that validation selected; the last one if the method does not validate. Of many
            clients' states it has those that evaluation reads.
        last_state: after the last round.
        metrics: final metrics of `state`: `test_accuracy` and others.
        records: one for each round: `round`, `seconds` including evaluation, the round's metrics, and
            validation metrics if the state was evaluated. Round 0 is the initial state.
    """

    algorithm: FederatedAlgorithm
    federation: Federation
    state: ServerState
    last_state: ServerState
    metrics: Metrics
    records: list[dict[str, Any]]

    def __repr__(self) -> str:
        """Three lines: the method, its rounds, its test accuracy or else its first metrics."""
        rounds = max((record["round"] for record in self.records), default=0)
        numbers = {
            name: value for name, value in self.metrics.items() if isinstance(value, int | float)
        }
        chief = {k: v for k, v in numbers.items() if k == "test_accuracy"} or numbers
        shown = [f"{name.replace('_', ' ')} {value:.4f}" for name, value in chief.items()]
        return (
            f"Simulated({self.algorithm.name or 'a method'})\n"
            f"{rounds} round{'s' * (rounds != 1)}, {self.federation.num_clients} clients\n"
            f"{', '.join(shown[:_MOST_SHOWN]) or 'no metrics'}"
        )

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return class probabilities, float32 [n, C], of any examples [n, ...].

        Raises:
            UsageError: the method labels its clients' points only and has no model for others; the examples
                have another shape than the clients'.
        """
        if self.algorithm.predict is None:
            raise UsageError(
                "predict: this method labels the points that its clients hold; see `predictions`"
            )
        like_these = self.federation.examples_like_these(x, "predict")
        return self.algorithm.predict(self.state, like_these)

    def predictions(self) -> Predictions:
        """Return the predictions for all points that the method labels or is tested on."""
        assert self.algorithm.outputs.predictions is not None
        return self.algorithm.outputs.predictions(self.state, self.federation)


def simulate(
    algorithm: FederatedAlgorithm,
    federation: Federation,
    *,
    rounds: int = 1,
    cohort_size: int = 0,
    sampling: str = "uniform",
    seed: int = 0,
    evaluate_every: int = 0,
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
        clock: speeds and availability of clients, for simulated time; None: none.
        on_round: called with every record as it is made.

    Raises:
        UsageError: the method cannot work with these clients, the network cannot work with their examples or
            classes, nobody has a label, there is nothing to evaluate rounds on, no client can meet the
            deadline, the clock changes cohorts on which a privacy guarantee counts, the loss is no longer
            finite, or no client has a model in the end.
    """
    _check(algorithm, federation, rounds, cohort_size, sampling, seed, evaluate_every, clock)
    if on_round is not None and not callable(on_round):
        raise UsageError(f"simulate: on_round={on_round!r}; use a function of a round's record")
    check_rounds(
        algorithm.course.labeled_only_rounds, rounds, "rounds", "Training.labeled_only_rounds"
    )
    chosen = Sampling(cohort_size, sampling)
    rounds = rounds_of(algorithm, rounds, cohort_size, federation.num_clients)
    numbers = range(1, rounds + 1)
    algorithm, schedule = schedule_of(clock or Clock(), algorithm, federation, chosen, seed, rounds)
    cohort_of = cohorts_of(algorithm, federation, chosen, seed, rounds)
    if schedule is not None:
        cohort_of = schedule.cohorts(federation)
    key = jax.random.key(seed)
    state = algorithm.init(jax.random.fold_in(key, 0), federation)
    selected = Selected.first(algorithm, state)
    records: list[dict[str, Any]] = []

    def tell(record: dict[str, Any]) -> None:
        records.append(record)
        if on_round is not None:
            on_round(record)

    def seen(state: ServerState) -> Metrics:
        return watched(algorithm.evaluate(state, federation)) if evaluate_test else {}

    if algorithm.validate:
        quality = algorithm.validate(state, federation)
        selected = selected.after(0, state, quality, algorithm.outputs.evaluated)
        quality = {**quality, **seen(state)}
        _check_curve(federation, evaluate_every, evaluate_test, quality)
        if quality:
            tell({"round": 0, **quality})
    playing = play(algorithm, state, numbers, cohort_of=cohort_of, key=key)
    if schedule is not None:
        playing = schedule.timed(playing)
    with closing(playing) as played:
        ended = time.perf_counter()
        for number, _, state, metrics, *_ in played:
            if has_diverged(metrics):
                raise UsageError(
                    f"simulate: diverged in round {number}, its loss is not finite; lower the learning "
                    "rate, or scale the features"
                )
            quality = {}
            if algorithm.validate and is_judged(algorithm, number, rounds, evaluate_every):
                quality = algorithm.validate(state, federation)
                selected = selected.after(number, state, quality, algorithm.outputs.evaluated)
                quality = {**quality, **seen(state)}
            else:
                selected = selected._replace(state=state)
            before_this, ended = ended, time.perf_counter()
            tell({"round": number, **metrics, **quality, "seconds": ended - before_this})
    final = algorithm.evaluate(selected.final, federation)
    if final.get(HAS_NO_MODEL):
        raise UsageError(
            f"simulate: no client has a model after round {rounds}; the warnings say why"
        )
    return Simulated(algorithm, federation, selected.final, selected.state, final, records)


def _check(
    algorithm: FederatedAlgorithm,
    federation: Federation,
    rounds: int,
    cohort_size: int,
    sampling: str,
    seed: int,
    evaluate_every: int,
    clock: Clock | None,
) -> None:
    for name, value, kind in (
        ("algorithm", algorithm, FederatedAlgorithm),
        ("federation", federation, Federation),
        ("clock", clock or Clock(), Clock),
    ):
        if not isinstance(value, kind):
            raise UsageError(f"simulate: {name} is a {type(value).__name__}; use a {kind.__name__}")
    if not isinstance(rounds, int | np.integer) or rounds < 1:
        raise UsageError(f"simulate: rounds={rounds!r}; use integers from 1 on")
    if not isinstance(cohort_size, int | np.integer) or not (
        0 <= cohort_size <= federation.num_clients
    ):
        raise UsageError(
            f"simulate: cohort_size={cohort_size}; use 1 to {federation.num_clients}, and 0 for all"
        )
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
        raise UsageError(f"simulate: seed={seed!r}; use integers from 0 to {2**31 - 1}")
    if not isinstance(evaluate_every, int | np.integer) or evaluate_every < 0:
        raise UsageError(
            f"simulate: evaluate_every={evaluate_every!r}; use integers from 1 on, and 0 for the last round"
        )
    if not any(map(len, federation.partition.labeled)) and not len(federation.server):
        raise UsageError(
            "simulate: nobody has a label, neither clients nor the server: give the federation labels from 0 "
            "on beside -1, or server=(x, y)"
        )
    allowed = [name for name in SAMPLINGS if name != "groups"]  # their number is a config's
    if sampling not in allowed:
        raise UsageError(
            f"simulate: sampling={sampling!r}; choose one of {', '.join(map(repr, allowed))}"
        )


def _check_curve(
    federation: Federation, evaluate_every: int, evaluate_test: bool, start: Metrics
) -> None:
    """Check that there is something to evaluate rounds on; `start` has the metrics of the initial state."""
    if evaluate_test and not len(federation.test):
        raise UsageError(
            "simulate: evaluate_test=True: there are no test examples; give test=(x, y) to the federation"
        )
    if evaluate_every and not (evaluate_test or start or len(federation.validation)):
        raise UsageError(
            f"simulate: evaluate_every={evaluate_every}: there are no validation examples; give "
            "validation=(x, y) to the federation, or use evaluate_test=True"
        )
