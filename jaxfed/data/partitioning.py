"""Which client holds which example, and which of them carry labels.

A partition is decided on counts first and dealt out afterwards:

1. The scheme gives weights W `[M, C]`: how strongly client m is drawn to class c.
2. W is scaled to the clients' sizes (rows) and to the classes' sizes (columns), and rounded to
   integers whose columns are exact, so that every example is used exactly once.
3. The shuffled examples of each class are dealt to clients, labeled and unlabeled, by those counts.

Nothing here rejects and retries, so nothing hangs, however small a Dirichlet parameter is.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from jaxfed.data.dealing import apportion, deal, fill_up, round_rows
from jaxfed.errors import UsageError

Scheme = Literal["iid", "dirichlet", "classes_per_client", "table", "natural"]
Quantity = Literal["equal", "dirichlet", "lognormal", "power_law"]
Skew = Literal["both", "labeled", "unlabeled"]
Assignment = Literal["random", "rotated"]

FEDMATCH_TABLE: tuple[tuple[float, ...], ...] = tuple(
    tuple(
        (0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15)[(c - row) % 10]
        for c in range(10)
    )
    for row in range(10)
)
"""FedMatch's ten client types over ten classes: row t is row 0 rotated right by t. ProtoFSSL, and one
of the settings of XCLP's code (`cifar10_100_3`), use the same."""


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
    classes_per_client: int | None = None,
    assignment: Assignment = "random",
    table: npt.ArrayLike = FEDMATCH_TABLE,
    client_id: npt.ArrayLike | None = None,
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
    new_fraction: float = 0.0,
    seed: int = 0,
) -> Partition:
    """Split the examples with classes `y` among clients, labeled and unlabeled.

    Args:
        y: int `[n]`, classes from 0.
        num_clients: M. With `scheme="natural"` it may be None: one client an id.
        scheme: which classes a client is drawn to.

            - "iid": all alike. Examples are shuffled; labels are equal for every class that is
              equally frequent, to within one (XCLP, Appendix A.2).
            - "dirichlet": of each class, client m gets the share p_m, p ~ Dir(`dirichlet_alpha` 1_M),
              drawn anew for each class. Sizes are left as they fall unless `quantity` is given.
              Clients may be empty when alpha is small: see `min_size`.
            - "classes_per_client": every client holds `classes_per_client` of the classes that occur.
              `assignment="random"`: drawn so that the number of holders of any two classes differs by
              at most one (XCLP's code: 5 random classes each, rotated in blocks of ten clients);
              "rotated": neighboring classes, starting at m mod C (the code's setting 1), or evenly
              spaced where M < C.
            - "table": client m follows row m mod T of `table` `[T, C]` (default `FEDMATCH_TABLE`).
              Expected counts, rounded; FedMatch's own code draws them.
            - "natural": the given `client_id`, in sorted order. Fewer clients than ids: the ids are
              shuffled and dealt out in turn, several to a client.
        quantity: shares q_m of the examples, on top of any scheme but "natural": "equal";
            "dirichlet": q ~ Dir(a 1_M); "lognormal": q_m proportional to exp(a N(0,1)); "power_law":
            q_m proportional to rank^-a, ranks shuffled; a = `quantity_parameter`. Default: equal,
            except as said of "dirichlet". Where the classes' sizes do not allow scheme and
            quantity together, the classes' sizes win and the shares are met as nearly as possible.
        min_size: smallest number of examples (without `new`) of a client. Those with fewer are
            filled up, one after another, from whoever is the largest then, from its largest class:
            at most M `min_size` moves, and a client may so get a class the scheme had not given it.
        labeled_fraction: f in [0, 1]: of each labeled client's examples, the share with a label.
            Rounded so that all labeled clients together hold round(f n), at least one if f > 0, and
            each client f n_m to within one (n_m as the scheme has it before labels are apart: with
            a `skew` other than "both", sizes are then met as nearly as the classes allow).
        num_labeled: n_L, in all. Each of the m_L labeled clients gets n_L / m_L; what exceeds a
            client's size goes to the others.
        labeled_per_class: labels per client and class. An integer or `[C]`: for each labeled client
            and each class (with a skewed client: all it has of a class, where it has fewer).
            `[M, C]`: exactly these. At most one of the three is given; none: all is labeled.
        num_labeled_clients: m_L: clients 0..m_L-1 hold labels, the others none. Default M.
        skew: which part follows the scheme; the other is iid (no difference for "iid").

            - "both": labels are drawn evenly from what the client holds. How the papers read.
            - "labeled": labels follow the scheme, and the rest is dealt so that the sizes are as
              `quantity` says. What the split files of XCLP's code hold.
            - "unlabeled": unlabeled data follow the scheme, labels are equal for every class. What
              FedMatch's code does.
        new_y: int `[n_new]`, classes of held-out examples, dealt by the same weights as the
            unlabeled part, into `new`; needs `new_client_id` `[n_new]` when natural (ids that
            `client_id` lacks become clients that hold nothing else).
        new_fraction: instead, hold out this share of each class of `y` (of each client, when
            natural) as `new`.
        seed: of `np.random.default_rng`; the same arguments give the same partition.

    Returns:
        A `Partition` of M clients; indices in random order within each array.

    Raises:
        UsageError: a value out of range; more labels, classes or examples asked for than there are.

    Cost: O(n log n) time, O(n + M C) memory: about 0.5 s for a million examples and 1,000 clients.
    """
    y = _classes("y", y)
    rng = np.random.default_rng(seed)
    _check(
        num_clients,
        scheme,
        quantity,
        quantity_parameter,
        min_size,
        num_labeled,
        num_labeled_clients,
        skew,
    )
    natural = scheme == "natural"
    if natural:
        owner, new_owner, num_clients = _natural_owners(
            y, client_id, new_y, new_client_id, num_clients, rng
        )
    assert num_clients is not None  # _check has seen to it
    if num_labeled_clients is not None and num_labeled_clients > num_clients:
        raise UsageError(
            f"num_labeled_clients={num_labeled_clients}: allowed are 0 to {num_clients}"
        )
    if new_y is not None and new_fraction:
        raise UsageError("new_y and new_fraction: at most one of them is allowed")

    kept = np.arange(len(y))
    if new_fraction:
        strata = owner if natural else y
        held_out = _stratified(strata, _fraction("new_fraction", new_fraction), rng)
        kept, new_points = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        new_classes = y[new_points]
        if natural:
            owner, new_owner = owner[kept], owner[new_points]
    elif new_y is not None:
        new_classes = _classes("new_y", new_y)
        new_points = len(y) + np.arange(len(new_classes))
    else:
        new_classes = new_points = np.zeros(0, np.int64)
        new_owner = np.zeros(0, np.int64)
    classes = y[kept]
    num_classes = int(max(classes.max(initial=-1), new_classes.max(initial=-1))) + 1
    totals = np.bincount(classes, minlength=num_classes)

    even = np.ones((num_clients, num_classes))
    if natural:
        weights, sizes = even, None
        held = _counts(owner, classes, num_clients, num_classes)
    else:
        weights = _weights(
            scheme,
            totals + np.bincount(new_classes, minlength=num_classes) > 0,
            num_clients,
            dirichlet_alpha,
            classes_per_client,
            assignment,
            np.asarray(table, float),
            rng,
        )
        sizes = _sizes(scheme, quantity, quantity_parameter, num_clients, len(classes), rng)
        held = deal(even if skew == "labeled" else weights, totals, sizes)
        if min_size * num_clients > len(classes):
            raise UsageError(
                f"min_size={min_size}: {num_clients} clients would need {min_size * num_clients} "
                f"examples, there are {len(classes)}"
            )
        fill_up(held, np.full(num_clients, min_size))

    wanted = _Labels(labeled_fraction, num_labeled, labeled_per_class, num_labeled_clients)
    labeled = _labeled_counts(wanted, held, totals, weights, skew)
    if not natural:
        if skew != "both":
            rest = deal(
                even if skew == "labeled" else weights,
                totals - labeled.sum(axis=0),
                # A table of labels may give a client more than its share of all examples.
                np.maximum(held.sum(axis=1) - labeled.sum(axis=1), 0),
            )
            smallest = np.maximum(min_size - labeled.sum(axis=1), 0)
            if smallest.sum() > rest.sum():
                raise UsageError(
                    f"min_size={min_size}: the labels asked for leave {rest.sum()} examples to fill "
                    f"clients up with, {smallest.sum()} are needed"
                )
            fill_up(rest, smallest)
            held = labeled + rest
        owner = _owners(classes, held, rng)
        unlabeled = held - labeled
        shares = unlabeled if unlabeled.sum() else held
        # Classes that only new points have fall back on the scheme's own weights.
        mix = np.where(shares.sum(axis=0) > 0, shares, weights)
        new_counts = deal(mix, np.bincount(new_classes, minlength=num_classes), None)
        new_owner = _owners(new_classes, new_counts, rng)

    order = rng.permutation(len(classes))
    is_labeled = _first_of_each(owner[order], classes[order], labeled)
    unshuffled = np.empty(len(order), bool)
    unshuffled[order] = is_labeled
    return Partition(
        labeled=_by_client(kept[unshuffled], owner[unshuffled], num_clients, rng),
        unlabeled=_by_client(kept[~unshuffled], owner[~unshuffled], num_clients, rng),
        new=_by_client(new_points, new_owner, num_clients, rng),
    )


def class_counts(y: npt.ArrayLike, indices: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """Examples of each class at each client: int64 [M, C], for one part of a `Partition`."""
    y = np.asarray(y)
    return np.array(
        [np.bincount(y[points], minlength=num_classes) for points in indices], np.int64
    ).reshape(len(indices), num_classes)


class _Labels(NamedTuple):
    """How many labels there are: at most one of the first three is given."""

    fraction: float | None
    number: int | None
    per_class: npt.ArrayLike | None
    num_clients: int | None


def _labeled_counts(
    wanted: _Labels, held: np.ndarray, totals: np.ndarray, weights: np.ndarray, skew: Skew
) -> np.ndarray:
    """int [M, C], labels of each class at each client."""
    num_clients = len(held)
    given = [value for value in wanted[:3] if value is not None]
    if len(given) > 1:
        raise UsageError(
            "labeled_fraction, num_labeled, labeled_per_class: at most one of them is allowed"
        )
    has_labels = np.arange(num_clients) < (
        num_clients if wanted.num_clients is None else wanted.num_clients
    )
    if wanted.per_class is not None:
        return _labels_per_class(np.asarray(wanted.per_class), held, totals, has_labels, skew)
    size = held.sum(axis=1)
    if wanted.number is not None:
        numbers = _spread(wanted.number, np.where(has_labels, size, 0))
    else:
        fraction = (
            1.0 if wanted.fraction is None else _fraction("labeled_fraction", wanted.fraction)
        )
        exact = fraction * np.where(has_labels, size, 0)
        number = round(fraction * size[has_labels].sum())
        if fraction > 0 and size[has_labels].sum():
            number = max(number, 1)
        numbers = apportion(exact, number)
    if skew == "both":
        share = held / np.maximum(size, 1)[:, None]
        return round_rows(share * numbers[:, None], numbers, held)
    mix = weights if skew == "labeled" else np.tile(totals.astype(float), (num_clients, 1))
    share = mix / np.maximum(mix.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    return round_rows(share * numbers[:, None], numbers, totals)


def _labels_per_class(
    per_class: np.ndarray,
    held: np.ndarray,
    totals: np.ndarray,
    has_labels: np.ndarray,
    skew: Skew,
) -> np.ndarray:
    num_clients, num_classes = held.shape
    allowed = ((), (num_classes,), held.shape)
    if per_class.shape not in allowed or not np.issubdtype(per_class.dtype, np.integer):
        raise UsageError(
            f"labeled_per_class has shape {list(per_class.shape)} and type {per_class.dtype}: allowed "
            f"are [{num_clients}, {num_classes}], [{num_classes}] or a number, of integers"
        )
    if (per_class < 0).any():
        raise UsageError("labeled_per_class: allowed are numbers from 0 on")
    if per_class.ndim == 2:
        labels = per_class.astype(np.int64)
        short = np.argwhere((labels > held) & (skew == "both"))
        if len(short):
            m, c = short[0]
            raise UsageError(
                f"labeled_per_class asks for {labels[m, c]} labels of class {c} at client {m}, which "
                f"holds {held[m, c]} examples of it"
            )
    else:
        labels = np.broadcast_to(per_class, held.shape).astype(np.int64) * has_labels[:, None]
        if skew == "both":
            labels[held == 0] = 0  # nobody is asked for labels of classes it does not have
    excess = labels.sum(axis=0) - totals
    if (excess > 0).any():
        worst = int(np.argmax(excess))
        raise UsageError(
            f"labeled_per_class asks for {labels[:, worst].sum()} labels of class {worst}, of which "
            f"there are {totals[worst]}"
        )
    return np.minimum(labels, held) if skew == "both" else labels


def _spread(number: int, room: np.ndarray) -> np.ndarray:
    """`number` labels over clients as equally as their room allows."""
    if number < 0 or number > room.sum():
        raise UsageError(
            f"num_labeled={number}: allowed are 0 to {room.sum()}, what the labeled clients hold"
        )
    numbers = np.zeros_like(room)
    while left := number - numbers.sum():
        open_clients = np.flatnonzero(numbers < room)
        share, extra = divmod(int(left), len(open_clients))
        add = np.full(len(open_clients), share)
        add[:extra] += 1
        numbers[open_clients] = np.minimum(numbers[open_clients] + add, room[open_clients])
    return numbers


def _weights(
    scheme: Scheme,
    occurs: np.ndarray,
    num_clients: int,
    dirichlet_alpha: float | None,
    classes_per_client: int | None,
    assignment: Assignment,
    table: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """float [M, C], how strongly each client is drawn to each class."""
    num_classes = len(occurs)
    if scheme == "iid":
        return np.ones((num_clients, num_classes))
    if scheme == "dirichlet":
        if dirichlet_alpha is None or not 0 < dirichlet_alpha < np.inf:
            raise UsageError(f"dirichlet_alpha={dirichlet_alpha}: allowed are numbers above 0")
        return rng.dirichlet(np.full(num_clients, dirichlet_alpha), num_classes).T
    if scheme == "classes_per_client":
        present = np.flatnonzero(occurs)
        weights = np.zeros((num_clients, num_classes))
        for client, places in enumerate(
            _places(len(present), num_clients, classes_per_client, assignment, rng)
        ):
            weights[client, present[places]] = 1
        return weights
    if table.ndim != 2 or table.shape[1] < num_classes or not (table >= 0).all():
        raise UsageError(
            f"table has shape {list(table.shape)}: allowed are [types, {num_classes} classes] of "
            "numbers from 0 on"
        )
    return table[np.arange(num_clients) % len(table), :num_classes]


def _places(
    num_classes: int,
    num_clients: int,
    classes_per_client: int | None,
    assignment: Assignment,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Which of the classes that occur each client holds."""
    k = classes_per_client
    if k is None or not 1 <= k <= num_classes:
        raise UsageError(f"classes_per_client={k}: allowed are 1 to {num_classes}")
    if assignment not in get_args(Assignment):
        raise UsageError(
            f"assignment={assignment!r}: allowed are {', '.join(map(repr, get_args(Assignment)))}"
        )
    if assignment == "rotated":
        step = 1 if num_clients >= num_classes else num_classes / num_clients
        chosen = [
            (int(client * step) + np.arange(k)) % num_classes for client in range(num_clients)
        ]
    else:
        holders, chosen = np.zeros(num_classes), []
        for _ in range(num_clients):  # the least held classes, chance among equals
            places = np.lexsort((rng.random(num_classes), holders))[:k]
            holders[places] += 1
            chosen.append(places)
    covered = len(np.unique(np.concatenate(chosen)))
    if covered < num_classes:
        raise UsageError(
            f"classes_per_client={k} with {num_clients} clients covers {covered} of {num_classes} "
            "classes: some examples would be nobody's; allow more classes or more clients"
        )
    return chosen


def _sizes(
    scheme: Scheme,
    quantity: Quantity | None,
    parameter: float,
    num_clients: int,
    num_examples: int,
    rng: np.random.Generator,
) -> np.ndarray | None:
    """float [M], how many examples each client is to hold; None leaves it to the scheme."""
    if quantity is None and scheme == "dirichlet":
        return None
    shares = np.ones(num_clients)
    if quantity == "dirichlet":
        shares = rng.dirichlet(np.full(num_clients, parameter))
    elif quantity == "lognormal":
        logarithms = parameter * rng.standard_normal(num_clients)
        shares = np.exp(logarithms - logarithms.max())
    elif quantity == "power_law":
        shares = rng.permutation((1.0 + np.arange(num_clients)) ** -parameter)
    return num_examples * shares / shares.sum()


def _natural_owners(
    y: np.ndarray,
    client_id: npt.ArrayLike | None,
    new_y: npt.ArrayLike | None,
    new_client_id: npt.ArrayLike | None,
    num_clients: int | None,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Each example's client, each new example's client, and M."""
    if client_id is None:
        raise UsageError("scheme='natural' needs client_id, which this data set does not have")
    ids = np.asarray(client_id)
    new_ids = ids[:0] if new_y is None else np.asarray(new_client_id)
    if ids.shape != y.shape or (new_y is not None and new_ids.shape != np.shape(new_y)):
        raise UsageError("client_id (and new_client_id) must have one id an example")
    names, numbers = np.unique(np.concatenate([ids, new_ids]), return_inverse=True)
    if num_clients is not None and num_clients != len(names):
        if num_clients > len(names):
            raise UsageError(f"num_clients={num_clients}: the data have {len(names)} client ids")
        group = np.empty(len(names), np.int64)
        group[rng.permutation(len(names))] = np.arange(len(names)) % num_clients
        numbers = group[numbers]
    owner, new_owner = np.split(numbers.astype(np.int64), [len(ids)])
    return owner, new_owner, len(names) if num_clients is None else num_clients


def _owners(classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 [n], the client of each example: those of a class are shuffled and dealt by `counts`."""
    num_clients, num_classes = counts.shape
    shuffled = rng.permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    owner = np.empty(len(classes), np.int64)
    owner[by_class] = np.repeat(np.tile(np.arange(num_clients), num_classes), counts.T.ravel())
    return owner


def _first_of_each(owner: np.ndarray, classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """bool [n]: the first counts[m, c] examples of client m and class c."""
    group = owner * counts.shape[1] + classes
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group, minlength=counts.size)
    rank = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.empty(len(group), bool)
    chosen[order] = rank < counts.ravel()[group[order]]
    return chosen


def _by_client(
    points: np.ndarray, owner: np.ndarray, num_clients: int, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """The points of each client, shuffled."""
    shuffled = rng.permutation(len(points))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    ends = np.cumsum(np.bincount(owner, minlength=num_clients))[:-1]
    return tuple(np.split(points[order].astype(np.int64), ends))


def _stratified(strata: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """bool [n]: the share `fraction` of each stratum, to within one, and of all together."""
    sizes = np.bincount(strata)
    chosen = apportion(fraction * sizes, round(fraction * len(strata)))
    return _first_of_each_in_random_order(strata, chosen, rng)


def _first_of_each_in_random_order(
    strata: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    order = rng.permutation(len(strata))
    chosen = np.empty(len(strata), bool)
    chosen[order] = _first_of_each(strata[order], np.zeros(len(strata), np.int64), counts[:, None])
    return chosen


def _counts(
    owner: np.ndarray, classes: np.ndarray, num_clients: int, num_classes: int
) -> np.ndarray:
    flat = np.bincount(owner * num_classes + classes, minlength=num_clients * num_classes)
    return flat.reshape(num_clients, num_classes)


def _classes(name: str, y: npt.ArrayLike) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim != 1 or not (np.issubdtype(y.dtype, np.integer) or y.size == 0):
        raise UsageError(f"{name} must be integers [n], got {y.dtype} of shape {list(y.shape)}")
    if y.size and y.min() < 0:
        raise UsageError(f"{name} has class {y.min()}: classes count from 0")
    return y.astype(np.int64)


def _fraction(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise UsageError(f"{name}={value}: allowed are 0 to 1")
    return value


def _check(
    num_clients: int | None,
    scheme: Scheme,
    quantity: Quantity | None,
    quantity_parameter: float,
    min_size: int,
    num_labeled: int | None,
    num_labeled_clients: int | None,
    skew: Skew,
) -> None:
    """What can be told from the arguments alone."""
    for name, value, kind in (
        ("scheme", scheme, Scheme),
        ("quantity", quantity, Quantity),
        ("skew", skew, Skew),
    ):
        if value not in get_args(kind) and value is not None:
            raise UsageError(
                f"{name}={value!r}: allowed are {', '.join(map(repr, get_args(kind)))}"
            )
    if skew is None:
        raise UsageError(f"skew=None: allowed are {', '.join(map(repr, get_args(Skew)))}")
    for name, number, least in (
        ("num_clients", num_clients, 1),
        ("num_labeled", num_labeled, 0),
        ("num_labeled_clients", num_labeled_clients, 0),
        ("min_size", min_size, 0),
    ):
        if number is not None and not (isinstance(number, int | np.integer) and number >= least):
            raise UsageError(f"{name}={number!r}: allowed are integers from {least} on")
    if scheme == "natural":
        if quantity is not None or skew != "both" or min_size:
            raise UsageError(
                "scheme='natural' says who holds what: quantity, skew and min_size do not go with it"
            )
    elif num_clients is None:
        raise UsageError(f"scheme={scheme!r} needs num_clients, an integer from 1 on")
    if quantity is not None and not 0 < quantity_parameter < np.inf:
        raise UsageError(f"quantity_parameter={quantity_parameter}: allowed are numbers above 0")
