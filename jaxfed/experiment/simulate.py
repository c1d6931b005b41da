"""A method's rounds on one's own clients, without a config and without files.

    federation = Federation.from_clients(clients, test=(x_test, y_test))
    training = Training(from_flax(Net, x_test.shape[1:]))
    result = simulate(fedavg(training=training), federation, rounds=50, cohort_size=10)

Rounds, cohorts and selection are those of an experiment (`jaxfed.federation.rounds`, `Selected`): the same
seed gives the same numbers, bit for bit, as an experiment of one repeat.
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
from jaxfed.experiment.selected import Selected
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
from jaxfed.federation.rounds import cohorts_of, is_judged, play
from jaxfed.federation.sampling import SAMPLINGS, Sampling


@dataclass(frozen=True)
class Simulated:
    """What a method has come to.

    Attributes:
        algorithm: the method.
        federation: the clients.
        state: the state that validation selected; the last one of a method that does not validate.
        last_state: after the last round.
        metrics: of `state`, final: `test_accuracy` and others.
        records: one a round: `round`, `seconds` of it and of judging it, what the round said, and what the
            state was worth where it was judged. Round 0 is the state before the first.
    """

    algorithm: FederatedAlgorithm
    federation: Federation
    state: ServerState
    last_state: ServerState
    metrics: Metrics
    records: list[dict[str, Any]]

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Probabilities of the classes, float32 [n, C], of any examples [n, ...].

        Raises:
            UsageError: the method labels its clients' points, and has no model for others; examples of
                another shape than theirs.
        """
        if self.algorithm.predict is None:
            raise UsageError(
                "predict: this method labels the points that its clients hold; see `predictions`"
            )
        like_these = self.federation.examples_like_these(x, "predict")
        return self.algorithm.predict(self.state, like_these)

    def predictions(self) -> Predictions:
        """The labels of all points that the method labels, or is tested on."""
        assert self.algorithm.predictions is not None
        return self.algorithm.predictions(self.state, self.federation)


def simulate(
    algorithm: FederatedAlgorithm,
    federation: Federation,
    *,
    rounds: int = 1,
    cohort_size: int = 0,
    sampling: str = "uniform",
    seed: int = 0,
    evaluate_every: int = 0,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> Simulated:
    """Run a method for some rounds.

    Args:
        algorithm: the method.
        federation: the clients.
        rounds: how many; a one-shot method has one where `cohort_size` is all clients.
        cohort_size: clients a round; 0 is all.
        sampling: of them, see `sample_clients`.
        seed: all that is random follows from it.
        evaluate_every: judge the state after every so many rounds; 0 is after the last only.
        on_round: told of every record as it is made.

    Raises:
        UsageError: the method cannot work with these clients, its network not with their examples and
            classes, nobody has a label, its loss is no longer finite, or no client has a model in the end.
    """
    _check(algorithm, federation, rounds, cohort_size, sampling)
    check_rounds(algorithm, rounds, "simulate: rounds", "Training.labeled_only_rounds")
    chosen = Sampling(cohort_size, sampling)
    key = jax.random.key(seed)
    state = algorithm.init(jax.random.fold_in(key, 0), federation)
    _check_outputs(algorithm, federation, state)
    selected = Selected(state, state if algorithm.validate else (), -1.0, 0)
    records: list[dict[str, Any]] = []

    def tell(record: dict[str, Any]) -> None:
        records.append(record)
        if on_round is not None:
            on_round(record)

    if algorithm.validate:
        quality = algorithm.validate(state, federation)
        selected = selected.after(0, state, quality)
        if quality:
            tell({"round": 0, **quality})
    rounds = rounds_of(algorithm, rounds, cohort_size, federation.num_clients)
    cohort_of = cohorts_of(algorithm, federation, chosen, seed)
    numbers = range(1, rounds + 1)
    with closing(play(algorithm, state, numbers, cohort_of=cohort_of, key=key)) as played:
        ended = time.perf_counter()
        for number, _, state, metrics, *_ in played:
            if has_diverged(metrics):
                raise UsageError(
                    f"simulate: diverged in round {number}, its loss is not finite; lower the learning rate"
                )
            quality = {}
            if algorithm.validate and is_judged(algorithm, number, rounds, evaluate_every):
                quality = algorithm.validate(state, federation)
                selected = selected.after(number, state, quality)
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
) -> None:
    for name, value, kind in (
        ("algorithm", algorithm, FederatedAlgorithm),
        ("federation", federation, Federation),
    ):
        if not isinstance(value, kind):
            raise UsageError(
                f"simulate: {name} is a {type(value).__name__}; allowed is a {kind.__name__}"
            )
    if not isinstance(rounds, int | np.integer) or rounds < 1:
        raise UsageError(f"simulate: rounds={rounds}; allowed are integers from 1 on")
    if not isinstance(cohort_size, int | np.integer) or not (
        0 <= cohort_size <= federation.num_clients
    ):
        raise UsageError(
            f"simulate: cohort_size={cohort_size}; allowed are 1 to {federation.num_clients}, and 0 for all"
        )
    if not any(map(len, federation.partition.labeled)) and not len(federation.server):
        raise UsageError(
            "simulate: nobody has a label, neither clients nor the server: give labels from 0 on beside -1"
        )
    allowed = [name for name in SAMPLINGS if name != "groups"]  # their number is a config's
    if sampling not in allowed:
        raise UsageError(
            f"simulate: sampling={sampling!r}; allowed are {', '.join(map(repr, allowed))}"
        )


def _check_outputs(
    algorithm: FederatedAlgorithm, federation: Federation, state: ServerState
) -> None:
    """A network of too few outputs would learn in silence, the wrong thing."""
    if algorithm.predict is None:
        return
    try:
        probabilities = algorithm.predict(state, federation.x[:1])
    except (TypeError, ValueError) as error:
        line = " ".join(str(error).split())[:300]
        raise UsageError(
            f"simulate: the network does not take examples of {federation.x.shape[1:]}: {line}"
        ) from error
    outputs = probabilities.shape[1]
    if outputs < federation.num_classes:
        raise UsageError(
            f"simulate: the network has {outputs} outputs and the clients have {federation.num_classes} "
            "classes; allowed are as many outputs or more"
        )
