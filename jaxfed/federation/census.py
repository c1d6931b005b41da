"""Counts of all clients' examples: what one side of a network knows of the others' data.

    census = census_of(federation)                        # in one process
    Federation(x, y, partition, num_classes, census=...)  # own examples, and everybody's counts

Batch sizes, sampling, padded shapes and the normalization of inputs depend on these numbers. On a network
each client sends its own to the server before the first round, and receives everybody's: they leave a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxfed.federation.feature_statistics import FeatureSums, feature_sums

if TYPE_CHECKING:
    from jaxfed.federation.clients import Federation


class ClientCounts(NamedTuple):
    """Counts and sums of one client's examples.

    Fields:
        examples: number of all of them.
        labels: number of the labeled ones.
        labels_of_a_class: the largest number of labels of one class.
        sums: of each feature.
    """

    examples: int
    labels: int
    labels_of_a_class: int
    sums: FeatureSums


class Census(NamedTuple):
    """`ClientCounts` of every client, in the order of their numbers.

    Fields:
        clients: one entry for each of the M clients.
    """

    clients: tuple[ClientCounts, ...]

    @property
    def capacity(self) -> int:
        """The size of the largest client."""
        return max((counts.examples for counts in self.clients), default=0)

    @property
    def max_labels(self) -> int:
        """The largest number of labels of a client."""
        return max((counts.labels for counts in self.clients), default=0)

    @property
    def max_labels_of_a_class(self) -> int:
        """The largest number of labels of one class at a client."""
        return max((counts.labels_of_a_class for counts in self.clients), default=0)


def counts_of(x: np.ndarray, y: np.ndarray) -> ClientCounts:
    """Count a client's examples [n, ...] by their labels, int [n]; -1 is unlabeled."""
    labels = y[y >= 0]
    sums = feature_sums(x, np.arange(len(x)))
    return ClientCounts(len(y), len(labels), most_of_a_class(labels), sums)


def most_of_a_class(labels: np.ndarray) -> int:
    """The largest number of labels of one class, of int [n] from 0 on; 0 without labels."""
    return int(np.bincount(labels).max(initial=0))


def census_of(federation: Federation) -> Census:
    """Count every client's examples in a federation that holds all of them."""
    counts = []
    for client, labeled in enumerate(federation.partition.labeled):
        points = federation.points(client)
        y = np.where(np.isin(points, labeled), federation.y[points], -1)
        counts.append(counts_of(federation.x[points], y))
    return Census(tuple(counts))
