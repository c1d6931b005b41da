"""Rounds: the clients that take part in each, the loop, and the rounds after which a state is evaluated.

    for t in rounds:
        state, metrics = algorithm.round(state, cohort_of(t), fold_in(key, t))

The clients of a round are a pure function of seed and round (`sample_clients`). Experiments, `simulate`,
features that clients learn first, and the counting of costs all use `play`: it has the only call of an
algorithm's `round` that advances an experiment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import (
    HAS_NO_MODEL,
    FederatedAlgorithm,
    Metrics,
    ServerState,
    attribute_of,
)
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.host.parallel.workers import prefetched
from jaxfed.random_streams import Stream

SAMPLINGS = ("uniform", "proportional", "groups")


class Sampling(NamedTuple):
    """Settings of cohort sampling; a config with keys of these names can replace it."""

    cohort_size: int = 0
    sampling: str = "uniform"


class Participation(NamedTuple):
    """Participation of M clients in `rounds` rounds, on which privacy guarantees depend.

    `clients_of` returns the clients of a round, from 1 on, ascending.
    """

    num_clients: int
    cohort_size: int
    sampling: str
    rounds: int
    clients_of: Callable[[int], list[int]]

    @property
    def is_drawn(self) -> bool:
        """True if each round draws a subset of the clients, all subsets of its size equally likely."""
        return self.sampling == "uniform" and self.cohort_size < self.num_clients

    def most_rounds(self) -> int:
        """Return the number of rounds of the client that takes part most often."""
        if self.cohort_size == self.num_clients:
            return self.rounds
        cohorts = map(self.clients_of, range(1, self.rounds + 1))
        return int(np.bincount(np.concatenate([*cohorts])).max())


def participation(
    config: Sampling | ConfigDict, federation: Federation, seed: int, rounds: int
) -> Participation:
    """Return the participation in `rounds` rounds on given labels; arguments as `sample_clients`."""
    num_clients = federation.num_clients
    size = config.cohort_size if 0 < config.cohort_size < num_clients else num_clients
    clients_of = partial(sample_clients, config, federation, seed, needs_labels=True)
    return Participation(num_clients, size, config.sampling, rounds, clients_of)


def sample_clients(
    config: Sampling | ConfigDict,
    federation: Federation,
    seed: int,
    round_number: int,
    *,
    needs_labels: bool = False,
) -> list[int]:
    """Return the round's clients, ascending: `cohort_size` drawn without replacement, 0 is all.

    `sampling` "uniform": all clients are equally likely, also those that have nothing to train on; they count
    with weight 0, and fewer train in that round. "proportional": clients with and without labels are drawn
    separately, in proportion to their shares of all clients (XCLP, A.2), at least one with labels.
    "groups": the clients are divided once, at random, into `num_groups` groups of at most `cohort_size`,
    their sizes equal to within one. Round r has group r; after the last group the first one follows (XCLP,
    B.1).

    For "proportional" the paper has tau m_L clients with labels, tau (m - m_L) without. It does not define
    tau m_L = 2.5 clients: as in its authors' code these are 3. The paper requires "some labels present in the
    graph". Without a graph over clients, a client without labels has nothing to train on. The draw then
    follows the authors' code: only clients with labels, `cohort_size` of them or all. If no client has a
    label, as with labels at the server, "proportional" is "uniform" by another draw.

    `seed` is that of the repeat, `round_number` from 1. `needs_labels`: clients without labels have nothing
    to do in this round (`needs_labels_in`).
    """
    num_clients, size = federation.num_clients, config.cohort_size
    if not 0 < size < num_clients:
        return list(range(num_clients))
    if config.sampling == "groups":
        count = num_groups(num_clients, size)
        return sorted(_groups(num_clients, count, seed)[(round_number - 1) % count].tolist())
    rng = np.random.default_rng((seed, round_number))
    pools: list[tuple[int | np.ndarray, int]] = [(num_clients, size)]
    if config.sampling == "proportional":
        labeled, unlabeled = federation.by_labels
        # Enough clients of both kinds exist.
        num_labeled = math.ceil(size * len(labeled) / num_clients)
        pools = [(labeled, num_labeled), (unlabeled, size - num_labeled)]
        if needs_labels and len(labeled):
            pools = [(labeled, min(size, len(labeled)))]
    drawn = [rng.choice(pool, count, replace=False) for pool, count in pools]
    return sorted(np.concatenate(drawn).tolist())


@lru_cache(maxsize=1)
def _groups(num_clients: int, count: int, seed: int) -> list[np.ndarray]:
    """The groups of an experiment, drawn once."""
    order = np.random.default_rng((seed, Stream.CLIENT_GROUPS)).permutation(num_clients)
    return np.array_split(order, count)


def num_groups(num_clients: int, cohort_size: int) -> int:
    """Number of groups of at most `cohort_size` clients; size 0 is one group of all."""
    return -(-num_clients // cohort_size) if cohort_size else 1


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

    A method whose guarantee depends on how clients take part has a round with `check_participation`, which
    raises a UsageError for a `Participation` in other cohorts, or in more rounds. The round itself finds the
    same, but later.
    """
    if (check := attribute_of(algorithm.round, "check_participation")) is not None:
        check(participation(sampling, federation, seed, rounds))

    def cohort_of(number: int) -> Cohort:
        needs_labels = needs_labels_in(algorithm, number)
        return federation.cohort(
            sample_clients(sampling, federation, seed, number, needs_labels=needs_labels)
        )

    return cohort_of


def needs_labels_in(algorithm: FederatedAlgorithm, number: int) -> bool:
    """True if clients without labels have nothing to do in this round, from 1 on, so need not take part.

    It is `needs_labels_in` of the method's round. With labels at the server these are all clients.
    """
    needs: bool = attribute_of(algorithm.round, "needs_labels_in", lambda number: False)(number)
    return needs


def is_judged(algorithm: FederatedAlgorithm, number: int, last: int, evaluate_every: int) -> bool:
    """True if the state after round `number` of `last` is evaluated.

    These are every `evaluate_every`-th round (0: none), the last one, and the last of the rounds on given
    labels alone (`stage_1` of the method's round is their number): compared methods begin to pseudo-label
    there, and the state before is a candidate of selection.
    """
    if number in (last, attribute_of(algorithm.round, "stage_1", 0)):
        return True
    return evaluate_every > 0 and number % evaluate_every == 0


def watched(quality: Metrics) -> Metrics:
    """Prefix a round's test metrics with `round_`, which marks them as not used for selection."""
    return {f"round_{name}": value for name, value in quality.items() if name != HAS_NO_MODEL}
