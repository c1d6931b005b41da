"""Memory demand of a config, checked before allocation: an allocation too large ends the process.

Lower bounds on the largest arrays are compared with the machine's memory. A config that passes may still
need too much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.methods import differently_trained, training_key
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.memory_limit import available_bytes, bytes_text

_INSIDE_CLIENTS = "per_client_lp"
_GRAPHS = ("xclp", _INSIDE_CLIENTS, "pooled_lp")  # methods, and sections, with graphs over points


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
    for section, inside_clients, own in _labelings(config):
        neighbors, bits = own["num_neighbors"], own.get("num_bits", 0)
        points = max(sizes) if inside_clients else sum(sizes)
        text = f"{neighbors} neighbors of {points} points"
        yield Demand(f"{section}.num_neighbors", neighbors, 8 * neighbors * points, text)
        yield Demand(f"{section}.num_bits", bits, 4 * bits * num_features, "as many hyperplanes")
    clients, public = config.cohort_size or federation.num_clients, len(federation.public)
    yield Demand(
        "federation.public_size", public, 4 * clients * public, f"{clients} clients' labels of them"
    )
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


def _labelings(config: ConfigDict) -> Iterator[tuple[str, bool, Mapping[str, Any]]]:
    """Yield the labelings by graphs that the run's methods make: section, whether each client has its own
    graph, and settings.
    """
    of_training = set()
    for name in methods.chosen(config):
        if not methods.trains(config, name):
            algorithm = methods.algorithm_of(config, name)
            if algorithm in _GRAPHS:
                yield name, algorithm == _INSIDE_CLIENTS, methods.all_keywords(config, name)
        elif not methods.has_learners(config, name):
            source = methods.needs(config, name).pseudo_label
            of_training |= {
                each for each in _GRAPHS[:2] if source is None or source.startswith(each)
            }
    for section in sorted(of_training):
        yield section, section == _INSIDE_CLIENTS, config[section]
