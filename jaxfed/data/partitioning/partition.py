"""Partition of examples among clients, with and without labels.

1. The scheme gives weights W `[M, C]` of client m for class c (`schemes`).
2. W is scaled to the clients' sizes (rows) and to the classes' sizes (columns): the expected counts.
3. Controlled random rounding makes integers of them (`dealing`) with these means and sums; `labeling` sets
   the number of labels.
4. The shuffled examples of each class are distributed to clients, labeled and unlabeled, by those counts.

The following are met to within one of their expectation: a client's size, its number of labels, and the
labels of each class over all clients. With "iid" all else is random, as if the examples were shuffled and
cut; with other schemes a client's number of examples of each class is met too. Labeled, unlabeled and new
points are distributed independently: the classes of a client's labels say nothing about its other points.
(If labels are drawn from a client's examples, as with schemes other than "iid", its unlabeled examples are
the rest.)

No step rejects samples, so nothing hangs, however small a Dirichlet parameter is.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxfed.data.dataset import UNLABELED
from jaxfed.data.partitioning import schemes
from jaxfed.data.partitioning.arguments import Skew, check_arguments, checked_classes
from jaxfed.data.partitioning.dealing import (
    apportion,
    expected,
    filled,
    owners_of,
    round_at_random,
    split_at_random,
)
from jaxfed.data.partitioning.labeling import Labels, drawn_labels, planned_labels
from jaxfed.data.partitioning.schemes import FEDMATCH_TABLE, OWNING, Assignment, Quantity, Scheme
from jaxfed.data.partitioning.strata import chosen_of_each, stratified
from jaxfed.errors import UsageError


class Partition(NamedTuple):
    """The examples of each client, as indices; every example of the data appears exactly once.

    Attributes:
        labeled: M int64 arrays, the examples whose label the client knows.
        unlabeled: M int64 arrays, the examples it holds without a label.
        new: M int64 arrays, held-out examples it wants labeled (X_new of XCLP's Section 4.1). Those
            of `new_y` count on from the end of `y`: they index the two arrays concatenated.
    """

    labeled: tuple[np.ndarray, ...]
    unlabeled: tuple[np.ndarray, ...]
    new: tuple[np.ndarray, ...]


def partition(
    y: npt.ArrayLike,
    *,
    num_clients: int | None = None,
    scheme: Scheme = "iid",
    dirichlet_alpha: float | None = None,
    dirichlet_alpha_rest: float = 100.0,
    dirichlet_share: float = 0.9,
    classes_per_client: int | None = None,
    assignment: Assignment = "random",
    table: npt.ArrayLike = FEDMATCH_TABLE,
    client_id: npt.ArrayLike | None = None,
    subclass: npt.ArrayLike | None = None,
    quantity: Quantity | None = None,
    quantity_parameter: float = 1.0,
    min_size: int = 0,
    labeled_fraction: float | None = None,
    num_labeled: int | None = None,
    labeled_per_class: npt.ArrayLike | None = None,
    num_labeled_clients: int | None = None,
    skew: Skew = "both",
    new_y: npt.ArrayLike | None = None,
    new_client_id: npt.ArrayLike | None = None,
    new_subclass: npt.ArrayLike | None = None,
    new_fraction: float = 0.0,
    seed: int = 0,
) -> Partition:
    """Split the examples with classes `y` among clients, labeled and unlabeled.

    Args:
        y: int `[n]`, classes from 0; -1 for an unknown class. Such an example is unlabeled at its client
            and never new; statements on labels below are about the other examples. Schemes by class
            distribute it evenly over clients, to the sizes given by `quantity`.
        num_clients: M. With `scheme="natural"` it may be None: one client an id.
        scheme: class proportions of the clients.

            - "iid": the same for all: examples are shuffled and cut. For labels see below.
            - "dirichlet": of each class, client m gets the share p_m, p ~ Dir(`dirichlet_alpha` 1_M),
              drawn anew for each class. Sizes are random unless `quantity` is given.
              Clients may be empty if alpha is small: see `min_size`.
            - "dirichlet_mixture": a share s = `dirichlet_share` of the examples by one draw of "dirichlet",
              and the rest by another with `dirichlet_alpha_rest`: of each class client m gets the share
              s p_m + (1 - s) q_m. With a `quantity`, s of what every client holds is of the first.
              (FedCT: alpha 2 and 100, halves in Section 5; 0.9 of alpha 2 in Appendix C.4 and in the
              code, of alpha 0.01 in Table 5.)
            - "classes_per_client": every client holds `classes_per_client` of the classes that occur.
              `assignment="random"`: drawn so that the number of holders of any two classes differs by
              at most one (XCLP's code: 5 random classes each, rotated in blocks of ten clients);
              "rotated": neighboring classes, starting at m mod C (the code's setting 1), or evenly
              spaced where M < C.
            - "table": client m follows row m mod T of `table` `[T, C]` (default `FEDMATCH_TABLE`).
              Expected counts, rounded at random; FedMatch's own code draws them.
            - "subclasses": of each class every client holds one of its subclasses, `subclass` [n]; which
              one is chance, and the numbers of holders of any two of a class differ by at most one (FedMD,
              FedCT's C.4: CIFAR-100's superclasses, of which every client knows all, each by another class).
              A subclass's examples are dealt to its holders in equal parts. As many clients as
              a class has subclasses at least.
            - "natural": the given `client_id`, in sorted order. Fewer clients than ids: the ids are
              shuffled and dealt out in turn, several to a client.
        quantity: shares q_m of the examples, on top of any scheme but "natural" and "subclasses": "equal";
            "dirichlet": q ~ Dir(a 1_M); "lognormal": q_m proportional to exp(a N(0,1)); "power_law":
            q_m proportional to rank^-a, ranks shuffled; a = `quantity_parameter`. Default: equal,
            except as said of "dirichlet", and with the mixture. Where the classes' sizes do not allow scheme
            and quantity together, the classes' sizes win and the shares are met as nearly as possible.
        min_size: smallest number of examples (without `new`) of a client. Those with fewer are
            filled up from the largest clients, which come down to a common level and give of each class
            in proportion to what they have: a client may so get a class the scheme had not given it.
        labeled_fraction: f in [0, 1]: of each labeled client's examples, the share with a label.
            Rounded so that all labeled clients together hold round(f n), at least one if f > 0, and
            each client f n_m to within one (n_m as the scheme has it before labels are apart: with
            a `skew` other than "both", sizes are then met as nearly as the classes allow). Over all
            clients, a class has its share of the labels to within one (as nearly as clients hold
            it); which of a client's examples are labeled is chance.
        num_labeled: n_L, in all. Each of the m_L labeled clients gets n_L / m_L, to within one; what
            exceeds a client's size goes to the others. With "iid" they are equal for every class,
            however frequent it is, to within one both at each client and over all (XCLP, A.2: clients
            "receive an equal number of labels of each class"; which classes get one more is chance), and
            the other examples are dealt around them. With other schemes as with `labeled_fraction`.
        labeled_per_class: labels per client and class. An integer or `[C]`: for each labeled client
            and each class (all it has of a class, where a skewed client has fewer; where a client is too
            small for so many, as many as fit, of each class alike).
            `[M, C]`: exactly these. At most one of the three is given; none: all is labeled.
        num_labeled_clients: m_L: clients 0..m_L-1 hold labels, the others none. Default M.
        skew: which part follows the scheme; the other is iid (no difference for "iid").

            - "both": labels are drawn evenly from what the client holds. How the papers read.
            - "labeled": a client's labels follow its weights, to within one of each class, and the rest is
              dealt as "iid", to the sizes that `quantity` says. What the split files of XCLP's code hold.
            - "unlabeled": unlabeled data follow the scheme, labels are as with "iid". What
              FedMatch's code does.
        new_y: int `[n_new]`, classes of held-out examples, dealt by the same expected shares as the
            unlabeled part, into `new`; needs `new_client_id` `[n_new]` when natural (ids that
            `client_id` lacks become clients that hold nothing else), and `new_subclass` with subclasses.
        new_fraction: instead, hold out this share of each class of `y` (of each client, when
            natural or with subclasses) as `new`.
        seed: of `np.random.default_rng`; the same arguments give the same partition.

    Returns:
        A `Partition` of M clients; indices in random order within each array.

    Raises:
        UsageError: a value out of range; more labels, classes or examples asked for than there are.

    Cost: O(n log n + M C log(M C)) time, O(n + M C) memory: for a million examples and 1,000 clients 0.7 s
    with 10 classes, 1.6 s with 100, on one core.
    """
    y = checked_classes("y", y, smallest=UNLABELED)
    rng = np.random.default_rng(seed)
    check_arguments(
        num_clients,
        scheme,
        quantity,
        quantity_parameter,
        min_size,
        num_labeled,
        num_labeled_clients,
        skew,
    )
    is_owned = scheme in OWNING
    if scheme == "natural":
        owner, new_owner, num_clients = schemes.natural_owners(
            y, client_id, new_y, new_client_id, num_clients, rng
        )
    elif scheme == "subclasses":
        assert num_clients is not None
        owner, new_owner = schemes.subclass_owners(
            y, subclass, new_y, new_subclass, num_clients, rng
        )
    assert num_clients is not None  # by check_arguments
    if num_labeled_clients is not None and num_labeled_clients > num_clients:
        raise UsageError(
            f"num_labeled_clients={num_labeled_clients}: allowed are 0 to {num_clients}"
        )
    if new_y is not None and new_fraction:
        raise UsageError("new_y and new_fraction: at most one of them is allowed")

    kept = np.arange(len(y))
    if new_fraction:
        if not 0 <= new_fraction <= 1:
            raise UsageError(f"new_fraction={new_fraction}: allowed are 0 to 1")
        known = np.flatnonzero(y != UNLABELED)
        strata = owner[known] if is_owned else y[known]
        held_out = np.zeros(len(y), bool)
        held_out[known] = stratified(strata, round(new_fraction * len(known)), rng)
        kept, new_points = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        new_classes = y[new_points]
        if is_owned:
            owner, new_owner = owner[kept], owner[new_points]
    elif new_y is not None:
        new_classes = checked_classes("new_y", new_y)
        new_points = len(y) + np.arange(len(new_classes))
    else:
        new_classes = new_points = np.zeros(0, np.int64)
        new_owner = np.zeros(0, np.int64)
    classes = y[kept]
    num_classes = int(max(classes.max(initial=-1), new_classes.max(initial=-1))) + 1
    # Examples of unknown class form an extra, last class without labels.
    is_known = classes != UNLABELED
    classes = np.where(is_known, classes, num_classes)
    num_columns = num_classes + (not is_known.all())
    totals = np.bincount(classes, minlength=num_columns)

    wanted = Labels(labeled_fraction, num_labeled, labeled_per_class, num_labeled_clients)
    if is_owned:
        is_labeled = _drawn(wanted, owner, classes, num_clients, num_classes, rng)
    else:
        if min_size * num_clients > len(classes):
            raise UsageError(
                f"min_size={min_size}: {num_clients} clients would need {min_size * num_clients} "
                f"examples, there are {len(classes)}"
            )
        new_totals = np.bincount(new_classes, minlength=num_columns)
        weights = schemes.weights(
            scheme,
            (totals + new_totals > 0)[:num_classes],
            num_clients,
            dirichlet_alpha,
            classes_per_client,
            assignment,
            np.asarray(table, float),
            rng,
        )
        sizes = schemes.sizes(scheme, quantity, quantity_parameter, num_clients, len(classes), rng)
        if scheme == "dirichlet_mixture":
            shape = (num_clients, num_classes)
            rest = schemes.dirichlet("dirichlet_alpha_rest", dirichlet_alpha_rest, shape, rng)
            weights = schemes.mixed(weights, rest, dirichlet_share, totals[:num_classes], sizes)
        weights = _widened(weights, num_columns)
        is_even = scheme == "iid" or skew == "labeled"  # all but the labels
        mix = np.ones_like(weights) if is_even else weights
        shares = filled(expected(mix, totals, sizes), np.full(num_clients, min_size))
        if scheme != "iid" and skew == "both":
            held = round_at_random(shares, rng)
            owner = owners_of(classes, held, rng)
            is_labeled = _drawn(wanted, owner, classes, num_clients, num_classes, rng)
        else:
            whole = apportion(shares.sum(axis=1), len(classes), rng)
            labeled = planned_labels(
                wanted,
                whole,
                totals[:num_classes],
                weights[:, :num_classes] if scheme != "iid" and skew == "labeled" else None,
                rng,
            )
            labeled = _widened(labeled, num_columns)
            rest = _rest(labeled, whole, totals, None if is_even else weights, min_size, rng)
            owner = owners_of(classes, labeled + rest, rng)
            is_labeled = chosen_of_each(owner * num_columns + classes, labeled.ravel(), rng)
        if is_even:
            of_each = apportion(
                (shares if len(classes) else mix).sum(axis=1), len(new_classes), rng
            )
            new_counts = split_at_random(new_totals, of_each, rng)
        else:
            # Classes that only new points have fall back on the scheme's own weights.
            mix = np.where(totals > 0, shares, weights)
            new_counts = round_at_random(expected(mix, new_totals, None), rng)
        new_owner = owners_of(new_classes, new_counts, rng)
    return Partition(
        labeled=_by_client(kept[is_labeled], owner[is_labeled], num_clients, rng),
        unlabeled=_by_client(kept[~is_labeled], owner[~is_labeled], num_clients, rng),
        new=_by_client(new_points, new_owner, num_clients, rng),
    )


def _widened(table: np.ndarray, num_columns: int) -> np.ndarray:
    """The table padded with columns of zeros to [M, `num_columns`]."""
    return np.pad(table, ((0, 0), (0, num_columns - table.shape[1])))


def _drawn(
    wanted: Labels,
    owner: np.ndarray,
    classes: np.ndarray,
    num_clients: int,
    num_classes: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """bool [n], labels drawn from the clients' examples of known classes."""
    known = np.flatnonzero(classes < num_classes)
    held = _counts(owner[known], classes[known], num_clients, num_classes)
    is_labeled = np.zeros(len(classes), bool)
    is_labeled[known] = drawn_labels(wanted, owner[known], classes[known], held, rng)
    return is_labeled


def class_counts(y: npt.ArrayLike, indices: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """Examples of each class at each client: int64 [M, C], for one part of a `Partition`.

    With examples of unknown class in `y` (-1) it is [M, C + 1]; the last column counts them.
    """
    y = np.asarray(y)
    is_known = y != UNLABELED
    num_columns = num_classes + (not is_known.all())
    y = np.where(is_known, y, num_classes)
    return np.array(
        [np.bincount(y[points], minlength=num_columns) for points in indices], np.int64
    ).reshape(len(indices), num_columns)


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
    # A table of labels may give a client more than its share of all examples.
    room = np.maximum(sizes - labeled.sum(axis=1), 0)
    smallest = np.maximum(min_size - labeled.sum(axis=1), 0)
    if smallest.sum() > left.sum():
        raise UsageError(
            f"min_size={min_size}: the labels asked for leave {left.sum()} examples to fill "
            f"clients up with, {smallest.sum()} are needed"
        )
    shares = expected(np.ones(labeled.shape) if weights is None else weights, left, room)
    shares = filled(shares, smallest)
    if weights is not None:
        return round_at_random(shares, rng)
    return split_at_random(left, apportion(shares.sum(axis=1), int(left.sum()), rng), rng)


def _by_client(
    points: np.ndarray, owner: np.ndarray, num_clients: int, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """The points of each client, shuffled."""
    shuffled = rng.permutation(len(points))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    ends = np.cumsum(np.bincount(owner, minlength=num_clients))[:-1]
    return tuple(np.split(points[order].astype(np.int64), ends))


def _counts(
    owner: np.ndarray, classes: np.ndarray, num_clients: int, num_classes: int
) -> np.ndarray:
    flat = np.bincount(owner * num_classes + classes, minlength=num_clients * num_classes)
    return flat.reshape(num_clients, num_classes)
