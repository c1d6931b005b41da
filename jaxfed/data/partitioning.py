"""Partition of examples among clients, with and without labels.

1. The scheme gives weights W `[M, C]` of client m for class c, or each example's client (`schemes`).
2. W is scaled to the clients' sizes (rows) and to the classes' sizes (columns): the expected counts.
3. Controlled random rounding makes integers of them (`controlled_rounding`) with these means and sums;
   `Labels` sets the number of labels.
4. The shuffled examples of each class are distributed to clients, labeled and unlabeled, by those counts.

The following are met to within one of their expectation: a client's size, its number of labels, and the
labels of each class over all clients. With `Iid` all else is random, as if the examples were shuffled and
cut; with other schemes a client's number of examples of each class is met too. Labeled, unlabeled and new
points are distributed independently: the classes of a client's labels say nothing about its other points.
(If labels are drawn from a client's examples, as by `skew="both"` with most schemes, its unlabeled examples
are the rest.)

No step rejects samples, so nothing hangs, however small a Dirichlet parameter is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from jaxfed.data.client_rows import ClientRows, Partition
from jaxfed.data.controlled_rounding import (
    allotted,
    apportion,
    chosen_of_each,
    expected,
    filled,
    first_of_each,
    owners_of,
    round_at_random,
    split_at_random,
)
from jaxfed.data.dataset import UNLABELED
from jaxfed.data.given_examples import as_array
from jaxfed.data.schemes import SCHEMES, Iid, OwnerScheme, Scheme
from jaxfed.errors import UsageError
from jaxfed.settings import Count, CountOrZero, Share, check, check_value

Skew = Literal["both", "labeled", "unlabeled", "independent"]


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


def partition(
    y: npt.ArrayLike,
    *,
    num_clients: int | None = None,
    scheme: Scheme = Iid(),  # noqa: B008
    min_size: int = 0,
    labels: Labels = Labels(),
    skew: Skew = "both",
    new_y: npt.ArrayLike | None = None,
    seed: int = 0,
) -> Partition:
    """Split the examples with classes `y` among clients, labeled and unlabeled.

        partition(y, num_clients=10, scheme=Dirichlet(0.3), labels=Labels(fraction=0.1))

    Args:
        y: int `[n]`, classes from 0; -1 for an unknown class. Such an example is unlabeled at its client
            and never new. Schemes by class distribute it evenly over clients, up to their sizes.
            Statements about labels concern the other examples.
        num_clients: M. With `Natural` it may be None: one client for each client id.
        scheme: class proportions of the clients, or each example's client: `Iid`, `Dirichlet`,
            `DirichletMixture`, `DirichletPairs`, `Classes`, `Table`, `Subclasses` or `Natural`, each
            documented in its class.
            `jaxfed.data.schemes` shows how to write another.
        min_size: smallest number of examples of a client, without new points; not with `Subclasses` and
            `Natural`, which fix them. Clients with fewer are filled up from the largest. These are cut to a
            common level and give of each class in proportion to their examples. So a client may receive a
            class that the scheme did not give it.
        labels: numbers of the clients' labels.
        skew: part that follows the scheme; the other is iid. (No difference with `Iid`; not with `Subclasses`
            and `Natural`.)

            - "both": labels are drawn evenly from the client's examples, as the papers say. (`DirichletPairs`
              deals them separately: as "independent".)
            - "labeled": a client's labels follow its weights, to within one of each class. The rest is
              distributed as with `Iid`, up to the sizes. The split files of XCLP's code are of this kind.
            - "unlabeled": unlabeled data follow the scheme, labels are as with `Iid`, as in FedMatch's code.
            - "independent": labels follow one draw of the scheme's weights, other examples a second, as in
              papers since FedDure ("internal heterogeneity"). Sizes follow the first draw; each class has
              its share of the labels. (The weights of `Table` are the same in both draws.)
        new_y: int `[n_new]`, classes of held-out examples, distributed by the same expected shares as the
            unlabeled part, into `new`. `Natural` and `Subclasses` need their column for them, too.
        seed: seed of `np.random.default_rng`; the same arguments give the same partition.

    Returns:
        A `Partition` of M clients; indices in random order within each array.

    Raises:
        UsageError: a value out of range; more labels, classes or examples requested than exist.

    Cost: O(n log n + M C log(M C)) time, O(n + M C) memory: for a million examples and 1,000 clients 0.7 s
    with 10 classes, 1.6 s with 100, on one core.
    """
    y = checked_classes("y", y, smallest=UNLABELED)
    _check(num_clients, scheme, min_size, labels, skew, seed)
    rng = np.random.default_rng(seed)
    new_classes = np.zeros(0, np.int64) if new_y is None else checked_classes("new_y", new_y)
    owner = np.zeros(0, np.int64)
    if isinstance(scheme, OwnerScheme):
        joint = np.concatenate([y, new_classes])
        owner, num_clients = scheme.owners(joint, num_clients, rng)
        scheme.check_length(len(y))
    owner, new_owner = owner[: len(y)], owner[len(y) :]
    assert num_clients is not None  # by _check
    if labels.clients is not None and labels.clients > num_clients:
        allowed = f"use 0 to {num_clients}, the number of clients"
        raise UsageError(owner="Labels", key="clients", value=labels.clients, allowed=allowed)
    num_classes = int(max(y.max(initial=-1), new_classes.max(initial=-1))) + 1
    examples = _Examples(np.where(y == UNLABELED, num_classes, y), new_classes, num_classes)
    if isinstance(scheme, OwnerScheme):
        is_labeled = _labels_of_owners(labels, owner, examples, num_clients, rng)
    else:
        owner, is_labeled, new_owner = _distributed(
            examples, num_clients, scheme, min_size, labels, skew, rng
        )
    labeled, unlabeled = np.flatnonzero(is_labeled), np.flatnonzero(~is_labeled)
    new = len(y) + np.arange(len(new_classes))
    return Partition(
        labeled=_by_client(labeled, owner[labeled], num_clients, rng),
        unlabeled=_by_client(unlabeled, owner[unlabeled], num_clients, rng),
        new=_by_client(new, new_owner, num_clients, rng),
    )


def class_counts(y: npt.ArrayLike, indices: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """Examples of each class at each client: int64 [M, C], for one part of a `Partition`.

    With examples of unknown class in `y` (-1) it is [M, C + 1]; the last column counts them.
    """
    y, clients = checked_classes("y", y, smallest=UNLABELED), ClientRows.of(indices)
    num_columns = num_classes + bool((y == UNLABELED).any())
    classes = y[clients.joined]
    groups = clients.owner * num_columns + np.where(classes == UNLABELED, num_classes, classes)
    shape = len(clients), num_columns
    return np.bincount(groups, minlength=shape[0] * shape[1]).reshape(shape)


def checked_classes(name: str, y: npt.ArrayLike, smallest: int = 0) -> np.ndarray:
    """int64 [n], classes from `smallest` on."""
    y = as_array(y, name)
    if y.ndim != 1 or not (np.issubdtype(y.dtype, np.integer) or y.size == 0):
        raise UsageError(
            f"{y.dtype} of shape {list(y.shape)}", key=name, allowed="use integers [n]"
        )
    if y.size and y.min() < smallest:
        unknown = ", or -1 for an unknown class" if smallest == UNLABELED else ""
        allowed = f"use classes from 0 on{unknown}"
        raise UsageError(f"class {y.min()}", key=name, allowed=allowed)
    return y.astype(np.int64)


def _check(
    num_clients: int | None, scheme: Scheme, min_size: int, labels: Labels, skew: Skew, seed: int
) -> None:
    if not isinstance(scheme, Scheme):
        known = ", ".join(f"{each.__name__}()" for each in SCHEMES.values())
        raise UsageError(key="scheme", value=scheme, allowed=f"use a scheme such as {known}")
    is_given = isinstance(scheme, OwnerScheme)  # clients are those of the data
    for name, setting, hint in (
        ("min_size", min_size, CountOrZero),
        ("labels", labels, Labels),
        ("skew", skew, Skew),
        ("seed", seed, CountOrZero),
        ("num_clients", num_clients, Count | None if is_given else Count),
    ):
        check_value(name, setting, hint, owner="partition")
    if isinstance(scheme, OwnerScheme):
        for key, value, default in (("min_size", min_size, 0), ("skew", skew, "both")):
            if value != default:
                wrong = f"{type(scheme).__name__} fixes the client of each example"
                raise UsageError(wrong, key=key, value=value, allowed=f"use {default!r}")


class _Examples(NamedTuple):
    """int64 [n] and [n_new], classes of examples and new points; class C is that of unknown classes."""

    classes: np.ndarray
    new_classes: np.ndarray
    num_classes: int


def _by_client(
    points: np.ndarray, owner: np.ndarray, num_clients: int, rng: np.random.Generator
) -> ClientRows:
    shuffled = rng.permutation(len(points))
    return ClientRows.by_owner(points[shuffled].astype(np.int64), owner[shuffled], num_clients)


def _distributed(
    examples: _Examples,
    num_clients: int,
    scheme: Scheme,
    min_size: int,
    labels: Labels,
    skew: Skew,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the client of each example, bool [n] for those with a label, and the client of each new point.

    With `skew="independent"` a first draw of the weights determines the clients' sizes and the classes of
    their labels; a second draw from the same `rng` determines the classes of all other examples.
    """
    classes, new_classes, num_classes = examples
    num_examples, num_columns = len(classes), int(max(classes.max(initial=0) + 1, num_classes))
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

    def drawn_weights() -> np.ndarray:
        weights = scheme.weights(occurs, num_clients, rng)
        return _widened(scheme.adjusted(weights, totals[:num_classes], rng), num_columns)

    weights, targets = drawn_weights(), None
    if not scheme.has_random_sizes:
        targets = num_examples * np.ones(num_clients) / num_clients
    is_independent = skew == "independent" or (skew == "both" and scheme.is_independent)
    is_independent = is_independent and not scheme.is_uniform
    is_even = scheme.is_uniform or skew == "labeled"  # all but the labels
    mix = np.ones_like(weights) if is_even else weights
    shares = filled(expected(mix, totals, targets), np.full(num_clients, min_size))
    if not scheme.is_uniform and skew == "both" and not is_independent:
        owner = owners_of(classes, round_at_random(shares, rng), rng)
        is_labeled = _labels_of_owners(labels, owner, examples, num_clients, rng)
    else:
        whole = apportion(shares.sum(axis=1), num_examples, rng)
        label_weights = None
        if is_independent:
            label_weights = shares[:, :num_classes]
            weights = drawn_weights()
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


def _labels_of_owners(
    labels: Labels,
    owner: np.ndarray,
    examples: _Examples,
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


# Labels, drawn from the clients' examples or planned before the rest is distributed.


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
    own_classes = rng.permutation(np.flatnonzero(labels[client] < held[client]))
    for open_class in rng.permutation(np.flatnonzero(quotas)):
        for c in own_classes:
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
    labels[client, own_classes[0]] += 1


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
