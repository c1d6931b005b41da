"""The round loop: a cohort, a round, the next state; and the rounds after which a state is evaluated.

    for t in rounds:
        state, metrics = algorithm.round(state, cohort_of(t), fold_in(key, t))

Experiments, `simulate`, features that clients learn first, and the counting of costs all use `play`: it has
the only call of an algorithm's `round` that advances an experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import HAS_NO_MODEL, FederatedAlgorithm, Metrics, ServerState
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.sampling import Sampling, participation, sample_clients
from jaxfed.host.parallel.workers import prefetched

CohortOf = Callable[[int], Cohort]  # number of a round -> its cohort


class Played(NamedTuple):
    """One finished round: its number, the server's state before and after it, metrics, cohort and key."""

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
    """Run rounds with these numbers, ascending, each from the state after the one before.

    A thread calls `cohort_of` one round ahead; round t has the key `fold_in(key, t)`. Yields each round once
    the device has finished it; close the generator to end the thread.
    """
    numbers = list(rounds)
    with closing(prefetched(cohort_of, numbers)) as cohorts:
        for number, cohort in zip(numbers, cohorts, strict=True):
            own_key = jax.random.fold_in(key, number)
            after, metrics = _checked(algorithm.round(state, cohort, own_key))
            jax.block_until_ready(after)
            yield Played(number, state, after, metrics, cohort, own_key)
            state = after


def _checked(result: Any) -> tuple[ServerState, Metrics]:
    """Check that a round has returned a state, and metrics of numbers."""
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise UsageError(
            f"a method's `round` returned {type(result).__name__}; return (state, metrics), metrics a dict"
        )
    texts = [name for name, value in result[1].items() if isinstance(value, str)]
    if texts:
        raise UsageError(f"a round's metric {texts[0]!r} is text; use a number")
    state, metrics = result
    return state, metrics


def cohorts_of(
    algorithm: FederatedAlgorithm,
    federation: Federation,
    sampling: Sampling | ConfigDict,
    seed: int,
    rounds: int,
) -> CohortOf:
    """Return the function that draws a method's cohorts from a federation (`sample_clients`).

    A method whose guarantee assumes other cohorts, or fewer rounds, raises a UsageError.
    """
    if (check := algorithm.course.check_participation) is not None:
        check(participation(sampling, federation, seed, rounds))

    def cohort_of(number: int) -> Cohort:
        needs_labels = algorithm.course.needs_labels_in(number)
        return federation.cohort(
            sample_clients(sampling, federation, seed, number, needs_labels=needs_labels)
        )

    return cohort_of


def is_judged(algorithm: FederatedAlgorithm, number: int, last: int, evaluate_every: int) -> bool:
    """True if the state after round `number` of `last` is evaluated.

    These are every `evaluate_every`-th round (0: none), the last one, and the last of the rounds on given
    labels alone: the state before pseudo-labels is a candidate of selection.
    """
    if number in (last, algorithm.course.stage_1):
        return True
    return evaluate_every > 0 and number % evaluate_every == 0


def watched(quality: Metrics) -> Metrics:
    """Prefix a round's test metrics with `round_`, which marks them as not used for selection."""
    return {f"round_{name}": value for name, value in quality.items() if name != HAS_NO_MODEL}
