"""Number and classes of the labels at each client.

Labels are either drawn from the clients' examples, or planned before the rest is distributed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxfed.data.partitioning.dealing import allotted, apportion, round_at_random, split_at_random
from jaxfed.data.partitioning.strata import chosen_of_each, first_of_each
from jaxfed.errors import UsageError


class Labels(NamedTuple):
    """Requested number of labels: at most one of the first three is given; none: all are labeled."""

    fraction: float | None
    number: int | None
    per_class: npt.ArrayLike | None
    num_clients: int | None


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
    by an exchange (`_one_more_label`).

    Args:
        owner: int [n], each example's client.
        classes: int [n].
        held: int [M, C], the same as counts.

    Returns:
        bool [n]
    """
    _at_most_one(wanted)
    num_clients, num_classes = held.shape
    groups = owner * num_classes + classes
    has_labels = _has_labels(wanted, num_clients)
    totals = held.sum(axis=0)
    if wanted.per_class is not None:
        per_class = _per_class(wanted.per_class, held.shape)
        if per_class.ndim < 2:
            labels = np.broadcast_to(per_class, held.shape) * has_labels[:, None]
        elif (per_class <= held).all():
            labels = per_class
        else:
            m, c = np.argwhere(per_class > held)[0]
            raise UsageError(
                f"labeled_per_class asks for {per_class[m, c]} labels of class {c} at client {m}, which "
                f"holds {held[m, c]} examples of it"
            )
        # No client labels classes that it does not have.
        _check_totals(np.where(held > 0, labels, 0), totals)
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
    labels: np.ndarray,
    held: np.ndarray,
    client: int,
    quotas: np.ndarray,
    rng: np.random.Generator,
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
    """Plan the number of labels of each class at each client, before other examples are distributed.

    Args:
        sizes: int [M], of the clients.
        totals: int [C], of the classes; their sum is below that of `sizes` if some classes are unknown.
        weights: float [M, C], class proportions of each client's labels, met to within one per class.
            None: the same for all clients. A number of labels is then equal for each class, to within one
            at each client and over all; a fraction is a random split of that fraction of each class.

    Returns:
        int64 [M, C]
    """
    _at_most_one(wanted)
    shape = (len(sizes), len(totals))
    has_labels = _has_labels(wanted, len(sizes))
    if wanted.per_class is not None:
        labels = _per_class(wanted.per_class, shape)
        if labels.ndim == 2:
            _check_totals(labels, totals)
            return labels
        labels = np.broadcast_to(labels, shape) * has_labels[:, None]
        _check_totals(labels, totals)
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


def _at_most_one(wanted: Labels) -> None:
    if sum(value is not None for value in wanted[:3]) > 1:
        raise UsageError(
            "labeled_fraction, num_labeled, labeled_per_class: at most one of them is allowed"
        )


def _has_labels(wanted: Labels, num_clients: int) -> np.ndarray:
    """bool [M], True for clients with labels."""
    return np.arange(num_clients) < (
        num_clients if wanted.num_clients is None else wanted.num_clients
    )


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
    if not 0 <= fraction <= 1:
        raise UsageError(f"labeled_fraction={fraction}: allowed are 0 to 1")
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
    if number < 0 or number > most:
        what = (
            "what the labeled clients hold"
            if most == room.sum()
            else "the labels that the data have"
        )
        raise UsageError(f"num_labeled={number}: allowed are 0 to {most}, {what}")
    rising = np.sort(room)
    levels = (number - np.cumsum(rising) + rising) / np.arange(len(rising), 0, -1)
    return np.minimum(room, levels[levels <= rising][0])


def _per_class(per_class: npt.ArrayLike, shape: tuple[int, int]) -> np.ndarray:
    """int64 of shape [], [C] or [M, C]."""
    labels = np.asarray(per_class)
    if labels.shape not in ((), shape[1:], shape) or not np.issubdtype(labels.dtype, np.integer):
        raise UsageError(
            f"labeled_per_class has shape {list(labels.shape)} and type {labels.dtype}: allowed "
            f"are [{shape[0]}, {shape[1]}], [{shape[1]}] or a number, of integers"
        )
    if (labels < 0).any():
        raise UsageError("labeled_per_class: allowed are numbers from 0 on")
    return labels.astype(np.int64)


def _check_totals(labels: np.ndarray, totals: np.ndarray) -> None:
    excess = labels.sum(axis=0) - totals
    if (excess > 0).any():
        worst = int(np.argmax(excess))
        raise UsageError(
            f"labeled_per_class asks for {labels[:, worst].sum()} labels of class {worst}, of which "
            f"there are {totals[worst]}"
        )
