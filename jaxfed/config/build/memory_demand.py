"""Memory demand of a config, checked before allocation: an allocation too large ends the process.

Lower bounds on the largest arrays are compared with the machine's memory. A config that passes may still
need too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.methods import differently_trained, training_key
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.memory_limit import available_bytes, bytes_text

_NEIGHBORS = ("xclp", "per_client_lp", "pooled_lp")  # sections with graphs over points


class Demand(NamedTuple):
    """Bytes of memory that the value of one key requires."""

    key: str
    value: object
    num_bytes: int
    what: str


def check(config: ConfigDict, federation: Federation, num_features: int) -> None:
    """Refuse a config that cannot fit into memory, by its clients' numbers of examples and of features.

    Raises:
        UsageError: names the key, the required bytes and the available ones.
    """
    for demand in _demands(config, federation, num_features):
        refuse_beyond(demand)


def refuse_beyond(demand: Demand) -> None:
    """Raise a UsageError if a demand exceeds the available memory."""
    available = available_bytes()
    if demand.num_bytes > available:
        raise UsageError(
            f"config.{demand.key}={demand.value}: {demand.what} would take {bytes_text(demand.num_bytes)} of "
            f"memory, there are {bytes_text(available)}"
        )


def _demands(config: ConfigDict, federation: Federation, num_features: int) -> Iterator[Demand]:
    sizes = federation.partition.sizes.sum(axis=0).tolist()
    for section in _NEIGHBORS:
        neighbors = config[section].num_neighbors
        points = max(sizes) if section == "per_client_lp" else sum(sizes)
        text = f"{neighbors} neighbors of {points} points"
        yield Demand(f"{section}.num_neighbors", neighbors, 8 * neighbors * points, text)
    clients, public = config.cohort_size or federation.num_clients, len(federation.public)
    yield Demand(
        "federation.public_size", public, 4 * clients * public, f"{clients} clients' labels of them"
    )
    bits = config.xclp.num_bits
    yield Demand("xclp.num_bits", bits, 4 * bits * num_features, "as many hyperplanes")
    epochs = {"training.epochs": config.training.epochs} | {
        training_key(config, name, "epochs"): seen.training.epochs
        for name, seen in differently_trained(config)
    }
    for name in methods.chosen(config):
        number = methods.keywords(config, name).get("unlabeled_query", 0)
        yield Demand(
            f"{name}.unlabeled_query", number, 4 * number * num_features, "so many examples a step"
        )
    for key, number in epochs.items():
        text = f"an order of {max(sizes)} examples each"
        yield Demand(key, number, 4 * number * max(sizes), text)
