"""The round loop: a cohort, a round, the next state; and the rounds after which a state is judged.

    for t in rounds:
        state, metrics = algorithm.round(state, cohort_of(t), fold_in(key, t))

Experiments, `simulate`, features that clients learn first and the counting of costs all consume `play`: it
makes the only call of an algorithm's `round` that advances an experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics, ServerState
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.sampling import Sampling, sample_clients
from jaxfed.host.prefetch import prefetched

CohortOf = Callable[[int], Cohort]  # of a round, by its number


class Played(NamedTuple):
    """One finished round.

    Fields:
        round: its number.
        before, after: the server's state.
        metrics: the round's own.
        cohort: its clients.
        key: its key.
    """

    round: int
    before: ServerState
    after: ServerState
    metrics: Metrics
    cohort: Cohort
    key: jax.Array


def play(
    algorithm: FederatedAlgorithm,
    state: ServerState,
    rounds: Iterable[int],
    *,
    cohort_of: CohortOf,
    key: jax.Array,
) -> Generator[Played]:
    """Play rounds one after another, each from the state that the one before has left.

    Args:
        algorithm: the method.
        state: what the first of these rounds starts from.
        rounds: their numbers, ascending.
        cohort_of: makes a round's cohort; a thread calls it one round ahead.
        key: typed; round t has `fold_in(key, t)`.

    Yields:
        Each round once the device has finished it. Close the generator to end the thread.
    """
    numbers = list(rounds)
    with closing(prefetched(cohort_of, numbers)) as cohorts:
        for number, cohort in zip(numbers, cohorts, strict=True):
            own_key = jax.random.fold_in(key, number)
            after, metrics = algorithm.round(state, cohort, own_key)
            jax.block_until_ready(after)
            yield Played(number, state, after, metrics, cohort, own_key)
            state = after


def cohorts_of(
    algorithm: FederatedAlgorithm,
    federation: Federation,
    sampling: Sampling | ConfigDict,
    seed: int,
) -> CohortOf:
    """The cohorts that a method draws of a federation (`sample_clients`)."""

    def cohort_of(number: int) -> Cohort:
        needs_labels = algorithm.needs_labels(number)
        return federation.cohort(
            sample_clients(sampling, federation, seed, number, needs_labels=needs_labels)
        )

    return cohort_of


def is_judged(algorithm: FederatedAlgorithm, number: int, last: int, evaluate_every: int) -> bool:
    """Whether the state after round `number` of `last` is judged.

    It is after every `evaluate_every`-th round (0: none), after the last, and after the rounds on given
    labels alone: what pseudo-labels start from is a candidate of selection.
    """
    if number in (last, algorithm.judged_after):
        return True
    return evaluate_every > 0 and number % evaluate_every == 0
