"""Which clients take part in a round: a pure function of seed and round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxfed.federation.clients import Federation

SAMPLINGS = ("uniform", "proportional", "groups")
LABELED_SHARES = ("ceiling", "nearest")

_GROUPS = (
    0x67727073  # sets the groups' randomness apart from rounds and from what deals the examples
)


class Sampling(NamedTuple):
    """How cohorts are drawn; a config's keys of these names do as well."""

    cohort_size: int = 0
    sampling: str = "uniform"
    labeled_share: str = "ceiling"
    labeled_cohorts: bool = True


class Participation(NamedTuple):
    """Who takes part how often, which a promise about noise depends on.

    Fields:
        num_clients: M.
        cohort_size: clients a round, all of them included.
        sampling: as in `Sampling`.
        most_rounds: -> in how many rounds the client that takes part most often does.
    """

    num_clients: int
    cohort_size: int
    sampling: str
    most_rounds: Callable[[], int]

    @property
    def is_drawn(self) -> bool:
        """Whether each round has a part of the clients, any such part as likely as another."""
        return self.sampling == "uniform" and self.cohort_size < self.num_clients


def participation(
    config: Sampling | ConfigDict, federation: Federation, seed: int, rounds: int
) -> Participation:
    """Of so many rounds of a method that trains on given labels; arguments as `sample_clients`."""
    num_clients = federation.num_clients
    size = config.cohort_size if 0 < config.cohort_size < num_clients else num_clients

    def most_rounds() -> int:
        if size == num_clients:
            return rounds
        counts = np.zeros(num_clients, np.int64)
        for number in range(1, rounds + 1):
            counts[sample_clients(config, federation, seed, number, needs_labels=True)] += 1
        return int(counts.max())

    return Participation(num_clients, size, config.sampling, most_rounds)


def sample_clients(
    config: Sampling | ConfigDict,
    federation: Federation,
    seed: int,
    round_number: int,
    *,
    needs_labels: bool = False,
) -> list[int]:
    """The round's clients, ascending: `cohort_size` drawn without replacement, 0 is all.

    `sampling` "uniform": all alike. "proportional": clients with labels and clients without are drawn
    apart, as many as their shares of all clients say (XCLP, A.2), at least one with labels. "groups":
    the clients are divided once, at random, into `num_groups` groups, at most `cohort_size` in each and
    their sizes equal to within one; round r has group r, and after the last it begins anew (XCLP, B.1).

    Of "proportional" the paper says: tau m_L clients with labels, tau (m - m_L) without. It leaves open
    what tau m_L = 2.5 clients are; `labeled_share` "ceiling" takes 3, as its authors' code does,
    "nearest" the nearest integer, of two as near ones the even. It says that there be "some labels
    present in the graph"; where there is no graph over clients, a client without labels has nothing to
    train on, and with `labeled_cohorts` the authors' code is followed, which draws clients with labels
    alone then, `cohort_size` of them or all. Where no client has a label, as with labels at the server,
    "proportional" is "uniform" by another draw.

    Args:
        config: how; of the experiment.
        federation: who has labels.
        seed: of the repeat.
        round_number: from 1.
        needs_labels: whether clients without labels have nothing to do in this round
            (`FederatedAlgorithm.needs_labels`).
    """
    num_clients, size = federation.num_clients, config.cohort_size
    if not 0 < size < num_clients:
        return list(range(num_clients))
    if config.sampling == "groups":
        count = num_groups(num_clients, size)
        order = np.random.default_rng((seed, _GROUPS)).permutation(num_clients)
        return sorted(np.array_split(order, count)[(round_number - 1) % count].tolist())
    rng = np.random.default_rng((seed, round_number))
    if config.sampling == "uniform":
        return sorted(rng.choice(num_clients, size, replace=False).tolist())
    has_labels = np.array([len(labeled) > 0 for labeled in federation.partition.labeled])
    labeled, unlabeled = np.flatnonzero(has_labels), np.flatnonzero(~has_labels)
    if needs_labels and config.labeled_cohorts and len(labeled):
        return sorted(rng.choice(labeled, min(size, len(labeled)), replace=False).tolist())
    share = size * len(labeled) / num_clients
    num_labeled = math.ceil(share) if config.labeled_share == "ceiling" else round(share)
    num_labeled = max(num_labeled, min(1, len(labeled)))  # there are as many, and of the others too
    drawn = [
        rng.choice(labeled, num_labeled, replace=False),
        rng.choice(unlabeled, size - num_labeled, replace=False),
    ]
    return sorted(np.concatenate(drawn).tolist())


def num_groups(num_clients: int, cohort_size: int) -> int:
    """How many groups of at most `cohort_size` clients there are; 0 is one group of all."""
    return -(-num_clients // cohort_size) if cohort_size else 1
