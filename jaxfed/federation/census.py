"""Numbers about all clients' examples that one side of a network knows.

    census = federation.counted()                         # where all clients' examples are
    Federation(x, y, partition, num_classes, census=...)  # own examples, and numbers about everybody's

Batch sizes, sampling, padded shapes and the normalization of inputs depend on these numbers. On a network
each client sends `ClientCounts` to the server before the first round, and receives the `Census` of all.

The sums of a single example are that example, and two sums before and after one example was added differ by
it. A client therefore sends sums only to methods that normalize their inputs by them, and only of enough
examples (`jaxfed.flower.client.hello`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxfed.federation.feature_statistics import FeatureSums, added, feature_sums


class ClientCounts(NamedTuple):
    """Counts and sums of one client's examples; they leave it.

    Fields:
        examples: number of all of them.
        labels: number of the labeled ones.
        sums: of each feature; None if the method does not need them.
    """

    examples: int
    labels: int
    sums: FeatureSums | None


class Census(NamedTuple):
    """Numbers about all clients' examples.

    Fields:
        capacity: the size of the largest client.
        max_labels: the largest number of labels of a client.
        sums: of each feature, over all clients; None if a client has sent none.
        labels: the number of labels of each client, which the server alone knows; () at a client.
        examples: the number of all examples of each client, likewise.
    """

    capacity: int
    max_labels: int
    sums: FeatureSums | None
    labels: tuple[int, ...] = ()
    examples: tuple[int, ...] = ()

    def shared(self) -> Census:
        """Return the part that clients receive, without counts of single clients."""
        return self._replace(labels=(), examples=())


def counts_of(x: np.ndarray, labels: np.ndarray, *, sums: bool = True) -> ClientCounts:
    """Count a client's examples [n, ...] and the labels that it has, int [m]; `sums`: sum its features."""
    return ClientCounts(len(x), len(labels), feature_sums(x, np.arange(len(x))) if sums else None)


def most_of_a_class(labels: np.ndarray, owner: np.ndarray) -> int:
    """The largest number of labels of one class at one client; 0 without labels.

    Args:
        labels: int [n], from 0 on.
        owner: int [n], the client of each, from 0 on.
    """
    groups = owner * (int(labels.max(initial=0)) + 1) + labels
    return int(np.unique(groups, return_counts=True)[1].max(initial=0))


def census_of(clients: Sequence[ClientCounts]) -> Census:
    """Join the counts of all clients, in the order of their numbers."""
    examples, labels, sums = zip(*clients, strict=True)
    known = [each for each in sums if each is not None]
    total = added(known) if len(known) == len(clients) else None
    return Census(max(examples), max(labels), total, labels, examples)
