"""Number and classes of the labels at each client.

Labels are either drawn from the clients' examples, or planned before the rest is distributed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxfed.data.partitioning.controlled_rounding import (
    allotted,
    apportion,
    chosen_of_each,
    first_of_each,
    round_at_random,
    split_at_random,
)
from jaxfed.errors import UsageError
from jaxfed.settings import CountOrZero, Share, check


@dataclass(frozen=True)
class Labels:
    """Number of labels: by `fraction`, `number` or `per_class`, at most one of them; without any, all.

    - `fraction`: all labeled clients together hold round(f n) labels, at least one if f > 0, and each client
      f n_m to within one. n_m is the client's size in the scheme. (With a `skew` other than "both", labels
      are planned before the rest is distributed, and sizes are met as nearly as the classes allow.) Over all
      clients, each class has its share of the labels to within one, as nearly as clients hold it.
    - `number`: each labeled client holds n_L / m_L labels, to within one; other clients receive what exceeds
      a client's size. With `Iid` the number is the same for every class, to within one at each client and
      over all (XCLP, A.2: clients "receive an equal number of labels of each class"). With other schemes
      classes have shares as with `fraction`.
    - `per_class`: for each labeled client and each class. A client with fewer examples of a class labels them
      all. A client too small for all these labels has as many as fit, of each class alike.

    Chance decides everything else, such as which of a client's examples are labeled.

    Attributes:
        fraction: share of each labeled client's examples that have a label.
        number: labels of all clients together.
        per_class: labels of each class at each labeled client.
        clients: number of clients with labels, the first ones.
    """

    fraction: Share | None = None
    number: CountOrZero | None = None
    per_class: CountOrZero | None = None
    clients: CountOrZero | None = None

    def __post_init__(self) -> None:
        """Check the fields, and that at most one number is given."""
        check(self)
        if [self.fraction, self.number, self.per_class].count(None) < 2:
            raise UsageError("Labels: use at most one of fraction, number and per_class")


def drawn_labels(
    wanted: Labels,
    owner: np.ndarray,
    classes: np.ndarray,
    held: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw labels from the clients' examples.

    A client's labeled examples are random, but the number of labels of each class over all clients is the
    expected one, to within one. Examples are visited in random order and labeled while both their client
    and their class need labels. A client that needs more when its remaining classes are complete gets them
    by an exchange (`_one_more_label`). `held` [M, C] counts the examples; the result is bool [n].
    """
    num_clients, num_classes = held.shape
    groups = owner * num_classes + classes
    has_labels = _has_labels(wanted, num_clients)
    totals = held.sum(axis=0)
    if wanted.per_class is not None:
        labels = np.full(held.shape, wanted.per_class) * has_labels[:, None]
        # No client labels classes that it does not have.
        _check_totals(wanted, np.where(held > 0, labels, 0), totals)
        return chosen_of_each(groups, labels.ravel(), rng)
    sizes = held.sum(axis=1)
    exact = _numbers(wanted, sizes, has_labels, len(classes))
    number = round(exact.sum())
    numbers = apportion(exact, number, rng)
    quotas = apportion(exact / np.maximum(sizes, 1) @ held, number, rng)
    labels = np.zeros_like(held)
    left = rng.permutation(len(owner))
    while True:
        left = left[(numbers[owner[left]] > 0) & (quotas[classes[left]] > 0)]
        if not len(left):
            break
        is_taken = first_of_each(owner[left], numbers)
        is_taken[is_taken] = chosen_of_each(classes[left[is_taken]], quotas, rng)
        taken = np.bincount(groups[left[is_taken]], minlength=held.size).reshape(held.shape)
        labels += taken
        numbers = numbers - taken.sum(axis=1)
        quotas = quotas - taken.sum(axis=0)
        left = left[~is_taken]
    for client in rng.permutation(np.repeat(np.arange(num_clients), numbers)):
        _one_more_label(labels, held, client, quotas, rng)
    return chosen_of_each(groups, labels.ravel(), rng)


def _one_more_label(
    labels: np.ndarray, held: np.ndarray, client: int, quotas: np.ndarray, rng: np.random.Generator
) -> None:
    """Add a label, in place, for a client whose remaining classes are complete.

    If another client can swap a label of such a class for one of an incomplete class, it does. Otherwise
    the class gets one too many, and the incomplete class stays short.
    """
    own = rng.permutation(np.flatnonzero(labels[client] < held[client]))
    for open_class in rng.permutation(np.flatnonzero(quotas)):
        for c in own:
            others = np.flatnonzero(
                (labels[:, c] > 0) & (labels[:, open_class] < held[:, open_class])
            )
            if len(others):
                other = rng.choice(others)
                labels[other, c] -= 1
                labels[other, open_class] += 1
                labels[client, c] += 1
                quotas[open_class] -= 1
                return
    labels[client, own[0]] += 1


def planned_labels(
    wanted: Labels,
    sizes: np.ndarray,
    totals: np.ndarray,
    weights: np.ndarray | None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Plan the number of labels of each class at each client, int64 [M, C], before the rest is distributed.

    `weights` are class proportions of each client's labels, met to within one per class. None: the same for
    all clients. A number of labels is then equal for each class, to within one at each client and over all; a
    fraction is a random split of that fraction of each class.
    """
    shape = (len(sizes), len(totals))
    has_labels = _has_labels(wanted, len(sizes))
    if wanted.per_class is not None:
        labels = np.full(shape, wanted.per_class) * has_labels[:, None]
        _check_totals(wanted, labels, totals)
        asked = labels.sum(axis=1)
        return round_at_random(labels * np.minimum(sizes / np.maximum(asked, 1), 1)[:, None], rng)
    numbers = _numbers(wanted, sizes, has_labels, int(totals.sum()))
    if weights is None:
        if wanted.number is None:
            number = round(numbers.sum())
            parts = apportion(totals, number, rng), apportion(numbers, number, rng)
            return split_at_random(*parts, rng)
        weights = np.broadcast_to(totals > 0, shape)
    return round_at_random(allotted(weights, numbers, totals), rng)


def _has_labels(wanted: Labels, num_clients: int) -> np.ndarray:
    return np.arange(num_clients) < (num_clients if wanted.clients is None else wanted.clients)


def _numbers(
    wanted: Labels, sizes: np.ndarray, has_labels: np.ndarray, num_known: int
) -> np.ndarray:
    """float64 [M], the expected number of labels of each client; the sum is an integer.

    `num_known` of all examples have a known class; a fraction refers to this share of a client's examples.
    """
    room = np.where(has_labels, sizes, 0)
    if wanted.number is not None:
        return _spread(wanted.number, room, num_known)
    room = room * (num_known / max(sizes.sum(), 1))
    fraction = 1.0 if wanted.fraction is None else wanted.fraction
    number = round(fraction * round(room.sum(), 6))  # roundoff must not tip a half
    if fraction > 0 and room.any():
        number = max(number, 1)
    whole, parts = np.divmod(fraction * room, 1)
    missing = number - whole.sum()
    if missing < parts.sum():
        parts *= missing / parts.sum()
    elif missing > parts.sum():  # up to the next whole number at most
        gaps = np.where(room > 0, 1 - parts, 0)
        parts += gaps * (missing - parts.sum()) / gaps.sum()
    return whole + parts


def _spread(number: int, room: np.ndarray, num_known: int) -> np.ndarray:
    """Spread `number` labels over clients as equally as their room allows, up to a common level."""
    most = min(int(room.sum()), num_known)
    if number > most:
        is_held = most == room.sum()
        limit = "examples of the labeled clients" if is_held else "labels that the data have"
        raise UsageError(
            owner="Labels", key="number", value=number, allowed=f"use 0 to {most}, the {limit}"
        )
    rising = np.sort(room)
    levels = (number - np.cumsum(rising) + rising) / np.arange(len(rising), 0, -1)
    return np.minimum(room, levels[levels <= rising][0])


def _check_totals(wanted: Labels, labels: np.ndarray, totals: np.ndarray) -> None:
    excess = labels.sum(axis=0) - totals
    if (excess > 0).any():
        worst = int(np.argmax(excess))
        raise UsageError(
            f"{labels[:, worst].sum()} labels of class {worst} in all, which has {totals[worst]} examples",
            owner="Labels",
            key="per_class",
            value=wanted.per_class,
            allowed="use a smaller number",
        )
