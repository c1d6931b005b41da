"""A round of 100 clients out of 10^3 to 10^6, of FedAvg and of methods with a state for each client.

A round's time should be its cohort's. Each contest is a round of many clients against the same method's of
1,000, in turn; at most 1.2 times its time is promised. Clients hold two labeled and three unlabeled examples,
views on one array of 5,000 images of 4 x 4. The network is an MLP of 8 hidden units. A round includes the
sampling and gathering of its cohort, and no evaluation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.rounds.fedavg_round import NUM_CLASSES, noisy_patterns
from benchmarks.timing.contest import Contest
from jaxfed.config import base
from jaxfed.config.assembly import make_algorithm
from jaxfed.data import Partition
from jaxfed.federation.clients import Federation
from jaxfed.federation.rounds import Sampling, cohorts_of

POPULATIONS = (1_000, 10_000, 100_000, 1_000_000)
COHORT = 100
EXAMPLES, PUBLIC = 5_000, 50
FEW = "1,000 clients"
PROMISED = 1 / 1.2
METHODS = (
    "fedavg",
    *("scaffold", "feddyn", "fedper", "fedrep", "fedsem", "dp_fedavg", "dp_fedavg_records"),
    *("protofssl", "fedproto", "fedtgp", "fedsiam", "fedmatch", "fedloke", "fedirm", "rscfed"),
    "feddure",
    *("local_learning", "fedct", "distributed_distillation", "dsfl", "fedmd"),
)


def population(with_peers: bool) -> Iterator[Contest]:
    """Every method at every number of clients; there are no peers to install."""
    del with_peers
    few, *others = POPULATIONS
    federations = {few: federation_of(few)}
    for many in others:
        federations = {few: federations[few], many: federation_of(many)}
        for method in METHODS:
            yield population_contest(method, federations[few], federations[many])


def population_contest(method: str, few: Federation, many: Federation) -> Contest:
    """Rounds of a method in a large federation, and in one of few clients."""
    case = {"n": many.num_clients, "cohort": min(COHORT, many.num_clients)}
    return Contest(
        task=f"{method} round",
        case=case,
        ours=rounds_of(method, many),
        peers={FEW: rounds_of(method, few)},
        targets={FEW: PROMISED},
        figures=lambda result, took: {"us a client of the cohort": 1e6 * took / case["cohort"]},
    )


def federation_of(num_clients: int) -> Federation:
    """Clients with 5 examples each, the same 5,000 in turn; two of a client's have labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(NUM_CLASSES, size=EXAMPLES + PUBLIC).astype(np.int32)
    x = noisy_patterns(rng, y, side=4, channels=1)
    rows = (np.arange(5 * num_clients) % EXAMPLES).reshape(num_clients, 5)
    partition = Partition(tuple(rows[:, :2]), tuple(rows[:, 2:]), (rows[0, :0],) * num_clients)
    public = np.arange(EXAMPLES, EXAMPLES + PUBLIC)
    return Federation(
        x,
        y,
        partition,
        NUM_CLASSES,
        public=public,
        public_labels=y[public],
    )


def config_of() -> ConfigDict:
    """The settings of all methods: one epoch at clients of their five examples."""
    config = base.get_config()
    config.model.name, config.model.hidden = "mlp", (8,)
    config.training.epochs, config.training.batch_size = 1, 5
    config.training.strong_augmentation = ("flip",)
    config.learner.name = "network"
    return config


def rounds_of(method: str, federation: Federation) -> Callable[[], Any]:
    """A function that plays the next round of a method, and returns its metrics."""
    algorithm = make_algorithm(config_of(), method, federation)
    cohort_of = cohorts_of(algorithm, federation, Sampling(COHORT), 0, sys.maxsize)
    key = jax.random.key(0)
    played = [(0, algorithm.init(key, federation))]

    def advance() -> Any:
        number, state = played.pop()
        number += 1
        after, metrics = algorithm.round(state, cohort_of(number), jax.random.fold_in(key, number))
        played.append((number, jax.block_until_ready(after)))
        return metrics

    return advance
