"""Costs of a client in one round, for each method of a config that trains one shared network.

Operations cover everything a client computes in the round: forward and backward pass, augmentation,
optimizer, prototypes. They come from XLA's analysis of its program (`jaxfed.kernels.devices`).
Bytes are counted by the round itself, with everything sent that may be sent
(`jaxfed.training.round.counted_round`). No client computes anything. Each method has the costs of two ways to
form batches:

    one_pass    one epoch over all examples of a client in one batch, as the paper's tables assume; an
                episode has all labels in its support and query, and every unlabeled example
    as_run      the config's own epochs, batches and episodes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.assembly import make_algorithm, trained_network
from jaxfed.config.data.simulation import Simulation
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import num_bytes_of
from jaxfed.kernels.devices import operations
from jaxfed.models.layers import by_definition
from jaxfed.paper_numbers import PAPER_COSTS, CostSetting
from jaxfed.training.pseudo_labels.prototypes import embedding_size
from jaxfed.training.round.counted_round import CountingClients, RoundCosts, round_costs

_EPISODES = {"support", "query", "unlabeled_query"}


class MethodCosts(NamedTuple):
    """Costs of one client in one round of a method.

    `formula` is (operations, bytes) of one epoch by the paper's formula, with this network and these clients;
    `paper` the paper's own for ResNet-9 on CIFAR-10. Both are None for methods that the paper does not have.
    """

    method: str
    one_pass: RoundCosts
    as_run: RoundCosts
    formula: tuple[float, float] | None
    paper: tuple[float, float] | None


def cohort_of(config: ConfigDict) -> Federation:
    """Return the first clients of the first repeat, as many as take part in a round."""
    federation = Simulation(config).federation(config.seed)
    number = config.cohort_size or federation.num_clients
    partition = Partition(*(clients[:number] for clients in federation.partition))
    cohort = Federation(federation.x, federation.y, partition, federation.num_classes)
    if not all(map(len, (*partition.labeled, *partition.unlabeled))):
        raise UsageError("config: costs need labeled and unlabeled examples at all clients")
    return cohort


def method_costs(config: ConfigDict) -> Iterator[MethodCosts]:
    """Yield the costs of each method of the config, which trains one network shared by all clients."""
    cohort = cohort_of(config)
    for name in methods.chosen(config):
        methods.check_trains(config, name)
        if methods.needs(config, name).has_learners:
            raise UsageError(
                f"config: {name!r} has a model for each client; operations are counted for one shared network"
            )
        seen = methods.with_own_training(config, name)
        row = PAPER_COSTS.get(methods.algorithm_of(config, name))
        setting = _setting(seen, name, cohort)
        yield MethodCosts(
            name,
            _costs(_in_one_pass(seen, name, cohort), name, cohort),
            _costs(seen, name, cohort),
            (row.operations(setting), row.bytes(setting)) if row else None,
            (1e9 * row.gigaflop, 1e6 * row.megabytes) if row else None,
        )


def _costs(config: ConfigDict, name: str, cohort: Federation) -> RoundCosts:
    """Return the round's costs, with convolutions counted by their definition as papers do.

    That includes the products with the padding.
    """
    clients = CountingClients()
    with by_definition():
        algorithm = make_algorithm(config, name, cohort, map_clients=clients)
        return round_costs(algorithm, clients, cohort, jax.random.key(config.seed))


def _in_one_pass(config: ConfigDict, name: str, cohort: Federation) -> ConfigDict:
    """Return the config with one epoch in one batch."""
    changed = config.copy_and_resolve_references()
    joint = {"batches": "joint", "batch_size": 0, "epochs": 1, "local_steps": 0}
    changed.training.update({**joint, "labeled_only_rounds": 0})
    keywords = methods.all_keywords(config, name)
    if keywords.keys() >= _EPISODES:
        episode = {
            "query": max(cohort.max_labels_of_a_class - keywords["support"], 1),
            "unlabeled_query": max(map(len, cohort.partition.unlabeled)),
        }
        with changed.unlocked():
            changed[name] = ConfigDict({**changed.get(name, {}), **episode})
    return changed


def _setting(config: ConfigDict, name: str, cohort: Federation) -> CostSetting:
    """Return the variables of the paper's formulas."""
    keywords = methods.all_keywords(config, name)
    model, _ = trained_network(config, cohort, 0, head=not keywords.keys() >= _EPISODES)
    state = jax.eval_shape(model.init, jax.random.key(0))
    image = jax.ShapeDtypeStruct((1, *cohort.x.shape[1:]), jnp.float32)
    sizes = ([len(points) for points in part] for part in cohort.partition[:2])
    labeled, unlabeled = (float(np.mean(of_clients)) for of_clients in sizes)
    return CostSetting(
        operations(model.apply, state, image),
        num_bytes_of(state),
        labeled,
        unlabeled,
        helpers=keywords.get("num_helpers", 0),
        interval=keywords.get("helper_interval", 1),
        prototype_bytes=4 * embedding_size(model, state, cohort),
        classes=cohort.num_classes,
    )
