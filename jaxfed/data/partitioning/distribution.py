"""Distribution of examples by class: expected counts, rounded at random, with and without labels."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from jaxfed.data.partitioning.controlled_rounding import (
    apportion,
    chosen_of_each,
    expected,
    filled,
    owners_of,
    round_at_random,
    split_at_random,
)
from jaxfed.data.partitioning.labeling import Labels, drawn_labels, planned_labels
from jaxfed.data.partitioning.schemes import Scheme
from jaxfed.errors import UsageError

Skew = Literal["both", "labeled", "unlabeled", "independent"]


class Examples(NamedTuple):
    """Classes of the examples to distribute.

    Fields:
        classes: int64 [n]; those of unknown class form an extra, last class, without labels.
        new_classes: int64 [n_new], of the new points; none is unknown.
        num_classes: C.
        num_columns: C, or C + 1 if some classes are unknown.
    """

    classes: np.ndarray
    new_classes: np.ndarray
    num_classes: int
    num_columns: int


def distributed(
    examples: Examples,
    num_clients: int,
    scheme: Scheme,
    min_size: int,
    labels: Labels,
    skew: Skew,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distribute examples to clients by a scheme's weights.

    With `skew="independent"` a first draw of the weights determines the clients' sizes and the classes of
    their labels; a second draw from the same `rng` determines the classes of all other examples.

    Returns:
        The client of each example, bool [n] for those with a label, and the client of each new point.

    Raises:
        UsageError: more examples or labels are requested than exist.
    """
    classes, new_classes, num_classes, num_columns = examples
    num_examples = len(classes)
    if min_size * num_clients > num_examples:
        raise UsageError(
            f"{num_clients} clients need {min_size * num_clients} examples, there are {num_examples}",
            key="min_size",
            value=min_size,
            allowed=f"use at most {num_examples // num_clients}",
        )
    totals = np.bincount(classes, minlength=num_columns)
    new_totals = np.bincount(new_classes, minlength=num_columns)
    occurs = (totals + new_totals > 0)[:num_classes]
    weights = scheme.weights(occurs, num_clients, rng)
    targets = None
    if not scheme.has_random_sizes:
        targets = num_examples * np.ones(num_clients) / num_clients
    weights = scheme.adjusted(weights, totals[:num_classes], rng)
    weights = _widened(weights, num_columns)
    is_independent = skew == "independent" or (skew == "both" and scheme.is_independent)
    is_independent = is_independent and not scheme.is_uniform
    is_even = scheme.is_uniform or skew == "labeled"  # all but the labels
    mix = np.ones_like(weights) if is_even else weights
    shares = filled(expected(mix, totals, targets), np.full(num_clients, min_size))
    if not scheme.is_uniform and skew == "both" and not is_independent:
        owner = owners_of(classes, round_at_random(shares, rng), rng)
        is_labeled = labels_of_owners(labels, owner, examples, num_clients, rng)
    else:
        whole = apportion(shares.sum(axis=1), num_examples, rng)
        label_weights = None
        if is_independent:
            label_weights = shares[:, :num_classes]
            weights = scheme.weights(occurs, num_clients, rng)
            weights = scheme.adjusted(weights, totals[:num_classes], rng)
            weights = _widened(weights, num_columns)
            shares = expected(weights, totals, shares.sum(axis=1))
        elif skew == "labeled" and not scheme.is_uniform:
            label_weights = weights[:, :num_classes]
        labeled = planned_labels(labels, whole, totals[:num_classes], label_weights, rng)
        labeled = _widened(labeled, num_columns)
        rest = _rest(labeled, whole, totals, None if is_even else weights, min_size, rng)
        owner = owners_of(classes, labeled + rest, rng)
        is_labeled = chosen_of_each(owner * num_columns + classes, labeled.ravel(), rng)
    if is_even:
        of_each = (shares if num_examples else mix).sum(axis=1)
        new_counts = split_at_random(new_totals, apportion(of_each, len(new_classes), rng), rng)
    else:
        # Classes that only new points have fall back on the scheme's own weights.
        mix = np.where(totals > 0, shares, weights)
        new_counts = round_at_random(expected(mix, new_totals, None), rng)
    return owner, is_labeled, owners_of(new_classes, new_counts, rng)


def labels_of_owners(
    labels: Labels,
    owner: np.ndarray,
    examples: Examples,
    num_clients: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """bool [n], labels drawn from the clients' examples of known classes."""
    classes, num_classes = examples.classes, examples.num_classes
    known = np.flatnonzero(classes < num_classes)
    cells = owner[known] * num_classes + classes[known]
    held = np.bincount(cells, minlength=num_clients * num_classes)
    held = held.reshape(num_clients, num_classes)
    is_labeled = np.zeros(len(classes), bool)
    is_labeled[known] = drawn_labels(labels, owner[known], classes[known], held, rng)
    return is_labeled


def _rest(
    labeled: np.ndarray,
    sizes: np.ndarray,
    totals: np.ndarray,
    weights: np.ndarray | None,
    min_size: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """int64 [M, C], counts of unlabeled examples: by weights, or a random split of the remaining sizes."""
    left = totals - labeled.sum(axis=0)
    room = sizes - labeled.sum(axis=1)
    smallest = np.maximum(min_size - labeled.sum(axis=1), 0)
    shares = expected(np.ones(labeled.shape) if weights is None else weights, left, room)
    shares = filled(shares, smallest)
    if weights is not None:
        return round_at_random(shares, rng)
    return split_at_random(left, apportion(shares.sum(axis=1), int(left.sum()), rng), rng)


def _widened(table: np.ndarray, num_columns: int) -> np.ndarray:
    """The table padded with columns of zeros to [M, `num_columns`]."""
    return np.pad(table, ((0, 0), (0, num_columns - table.shape[1])))
