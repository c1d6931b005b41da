"""Run a method on user-defined clients, without a config and without files.

    federation = Federation.from_clients(clients, test=(x_test, y_test))
    training = Training(from_flax(Net, x_test.shape[1:]))
    result = simulate(fedavg(training=training), federation, rounds=50, cohort_size=10)

The rounds are those of an experiment (`jaxfed.experiment.run.method_rounds`). The same seed produces
bit-identical numbers to an experiment with one repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.experiment.run.method_rounds import Plan, method_rounds
from jaxfed.federation.algorithm import (
    HAS_NO_MODEL,
    FederatedAlgorithm,
    Metrics,
    Predictions,
    ServerState,
    check_rounds,
    rounds_of,
)
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock.schedule import schedule_of
from jaxfed.federation.clock.settings import Clock
from jaxfed.federation.sampling import Sampling
from jaxfed.settings import Count, CountOrZero, hinted

_MOST_SHOWN = 3  # metrics of a method that is not tested


@dataclass(frozen=True, repr=False)
class Simulated:
    """Result of a simulation.

    Attributes:
        algorithm: the method.
        federation: the clients.
        state: the state that validation selected, without what evaluation does not read
            (`Outputs.evaluated`); the last one if the method does not validate.
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
        clock: speeds and availability of clients, for simulated time; None: none.
        on_round: called with every record as it is made.

    Raises:
        UsageError: the method cannot work with these clients, the network cannot work with their examples or
            classes, nobody has a label, there is nothing to evaluate rounds on, no client can meet the
            deadline, the clock changes cohorts on which a privacy guarantee counts, the loss is no longer
            finite, or no client has a model in the end.
    """
    _check(algorithm, federation, cohort_size)
    check_rounds(
        algorithm.course.labeled_only_rounds, rounds, "rounds", "Training.labeled_only_rounds"
    )
    chosen = Sampling(cohort_size, sampling)
    rounds = rounds_of(algorithm, rounds, cohort_size, federation.num_clients)
    algorithm, schedule = schedule_of(clock or Clock(), algorithm, federation, chosen, seed, rounds)
    plan = Plan(chosen, rounds, evaluate_every, evaluate_test, schedule=schedule)
    records: list[dict[str, Any]] = []
    with closing(method_rounds(algorithm, federation, plan, seed)) as measured:
        for selected, record, tested in measured:  # noqa: B007, the last one counts
            if record.get("diverged"):
                raise UsageError(
                    f"simulate: diverged in round {record['round']}, its loss is not finite; lower the "
                    "learning rate, or scale the features"
                )
            if record["round"] == 0:
                start = {name: value for name, value in record.items() if name != "round"}
                _check_curve(federation, evaluate_every, evaluate_test, start)
                if not start:
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
    for name, value, kind in (
        ("algorithm", algorithm, FederatedAlgorithm),
        ("federation", federation, Federation),
    ):
        if not isinstance(value, kind):
            raise UsageError(f"simulate: {name} is a {type(value).__name__}; use a {kind.__name__}")
    if cohort_size > federation.num_clients:
        allowed = f"use 1 to {federation.num_clients}, and 0 for all"
        raise UsageError(key="cohort_size", owner="simulate", value=cohort_size, allowed=allowed)
    if not any(map(len, federation.partition.labeled)) and not len(federation.server):
        raise UsageError(
            "simulate: nobody has a label, neither clients nor the server: give the federation labels from 0 "
            "on beside -1, or server=(x, y)"
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
