"""Random controlled rounding of tables of clients x classes, which keeps sums; random choices by group."""

from __future__ import annotations

import numpy as np

_MAX_SCALINGS = 200  # far beyond convergence for tables without zeros; bounds the others
_SMALLEST = 1e-100  # smaller weights, as tiny Dirichlet parameters draw, would overflow
_BITS = 20  # of a fraction that is rounded at random
_WHOLE = 1e-6  # sums this near to an integer count as it


def expected(weights: np.ndarray, totals: np.ndarray, sizes: np.ndarray | None) -> np.ndarray:
    """Expected number of examples of each class at each client, by weights [M, C]; column sums are `totals`.

    With `sizes`, rows and columns are scaled in turn (Sinkhorn) until client m holds sizes[m]. If zeros in
    the weights do not allow that, column sums take priority. A class without weight is split evenly.
    """
    weights = np.asarray(weights, np.float64)
    weights = np.where(weights > 0, np.maximum(weights, _SMALLEST), 0.0)
    weights = np.where(weights.sum(axis=0) > 0, weights, 1.0)
    exact = weights / weights.sum(axis=0) * totals
    if sizes is not None:
        for _ in range(_MAX_SCALINGS):
            rows = exact.sum(axis=1)
            if np.abs(rows - sizes).max(initial=0) < _WHOLE / 10:
                break
            exact *= (sizes / np.where(rows > 0, rows, 1))[:, None]
            columns = exact.sum(axis=0)
            exact *= np.where(columns > 0, totals / np.where(columns > 0, columns, 1), 1)
        # A class with weight only at clients of size 0 has lost its examples: split it evenly.
        lost = (exact.sum(axis=0) <= 0) & (totals > 0)
        exact[:, lost] = totals[lost] / len(exact)
    return exact


def allotted(weights: np.ndarray, sizes: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Give each client sizes[m] examples by its weights [M, C], at most totals[c] of each class.

    If a class runs out, the client's other classes fill in, in its proportions. If these run out too, all
    classes do, in proportion to their remainders.
    """
    exact = np.where(weights > 0, np.maximum(weights, _SMALLEST), 0.0)
    for _ in range(_MAX_SCALINGS):
        rows = exact.sum(axis=1)
        exact = exact * (sizes / np.where(rows > 0, rows, 1))[:, None]
        columns = exact.sum(axis=0)
        exact = exact * np.minimum(totals / np.where(columns > 0, columns, 1), 1)
        missing = np.maximum(sizes - exact.sum(axis=1), 0)
        if missing.max(initial=0) < _WHOLE / 10:
            break
    left = np.maximum(totals - exact.sum(axis=0), 0)
    return exact + np.outer(missing, left / max(left.sum(), _SMALLEST))


def filled(exact: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """Raise row m of a table to at least smallest[m], at the cost of the rows with the largest surplus.

    Rows above a common level are cut to it, in proportion to their entries. The cut examples are pooled
    and then distributed.
    """
    sizes = exact.sum(axis=1)
    missing = np.maximum(smallest - sizes, 0)
    if not missing.any():
        return exact
    spare = sizes - smallest
    falling = np.sort(spare)[::-1]
    levels = (np.cumsum(falling) - missing.sum()) / np.arange(1, len(spare) + 1)
    # At least one: if only roundoff is missing, no level is below the largest.
    num_giving = max(int(np.count_nonzero(falling > levels)), 1)
    surplus = np.maximum(spare - max(levels[num_giving - 1], 0), 0)
    gifts = exact * (surplus / np.where(sizes > 0, sizes, 1))[:, None]
    return exact - gifts + np.outer(missing / missing.sum(), gifts.sum(axis=0))


def round_at_random(exact: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random integer table whose mean is `exact`.

    Every entry, row sum, column sum, and the total is rounded down or up; integer sums do not change.
    Equal rows are exchangeable, and so are equal columns.

    The fractions are rounded bit by bit, the lowest first (L. H. Cox. "A constructive procedure for
    unbiased controlled rounding". JASA 82, 1987). An extra row and column make all sums integers. So an
    even number of entries in each row and column have the bit. Paired at random, by rows and by columns,
    they form cycles. Along each cycle, entries are rounded down and up in turn; a coin decides the first.

    Args:
        exact: float [M, C], non-negative.

    Returns:
        int64 [M, C].

    Cost: O(M C log(M C)) operations for each of 20 bits.
    """
    # Runs once, except when roundoff changes an integer sum, in one of 10^5 tables.
    while True:
        counts = _rounded_once(exact, rng)
        if all(
            (np.abs(counts.sum(axis) - whole)[np.abs(exact.sum(axis) - whole) < _WHOLE] == 0).all()
            for axis in (0, 1)
            for whole in [np.rint(exact.sum(axis))]
        ):
            return counts


def _rounded_once(exact: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    one = 1 << _BITS
    whole = np.floor(exact)
    parts = np.zeros((exact.shape[0] + 1, exact.shape[1] + 1), np.int64)
    parts[:-1, :-1] = np.rint((exact - whole) * one)
    parts[:-1, -1] = -parts[:-1].sum(axis=1) % one
    parts[-1] = -parts.sum(axis=0) % one
    flat = parts.ravel()  # a view
    for bit in range(_BITS):
        has_bit = np.flatnonzero(flat >> bit & 1)
        if not len(has_bit):
            continue
        row, column = np.divmod(has_bit, parts.shape[1])
        row_partner, column_partner = _partners(row, rng), _partners(column, rng)
        # Two steps along a cycle, one by row and one by column, reach every second entry.
        circle = np.arange(len(has_bit))
        step = row_partner[column_partner]
        for _ in range(len(has_bit).bit_length()):
            circle = np.minimum(circle, circle[step])
            step = step[step]
        others = circle[row_partner]
        coins = rng.random(len(has_bit)) < 0.5
        up = (circle < others) == coins[np.minimum(circle, others)]
        flat[has_bit] += np.where(up, 1 << bit, -(1 << bit))
    return (whole + (parts[:-1, :-1] >> _BITS)).astype(np.int64)


def _partners(group: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Pair the members of each group at random; groups have even sizes. Returns each member's partner."""
    order = np.argsort(group + rng.random(len(group)))
    partner = np.empty_like(order)
    partner[order[::2]], partner[order[1::2]] = order[1::2], order[::2]
    return partner


def apportion(exact: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Scale non-negative numbers to the sum `total` and round each down or up; means are exact.

    Systematic sampling in random order: the running sum is rounded with one random offset.
    """
    exact = np.asarray(exact, np.float64)
    largest = exact.max(initial=0)
    if largest <= 0:
        return np.zeros(len(exact), np.int64)
    order = rng.permutation(len(exact))
    running = np.cumsum(exact[order] / largest)  # sums neither overflow nor underflow
    running *= total / running[-1]
    counts = np.empty(len(exact), np.int64)
    counts[order] = np.diff(np.floor(running + rng.random()), prepend=0)
    return counts


def split_at_random(totals: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shuffle examples and cut them into parts: counts int64 [M, C] with these column and row sums."""
    num_classes = len(totals)
    classes = rng.permutation(np.repeat(np.arange(num_classes), totals))
    cells = np.repeat(np.arange(len(sizes)) * num_classes, sizes) + classes
    return np.bincount(cells, minlength=len(sizes) * num_classes).reshape(len(sizes), num_classes)


def owners_of(classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 [n], the client of each example: a class is shuffled and split by `counts`."""
    num_clients, num_classes = counts.shape
    shuffled = rng.permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    owner = np.empty(len(classes), np.int64)
    owner[by_class] = np.repeat(np.tile(np.arange(num_clients), num_classes), counts.T.ravel())
    return owner


def stratified(strata: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """bool [n]: `number` of the examples at random, the same share of each stratum to within one."""
    sizes = np.bincount(strata)
    return chosen_of_each(strata, apportion(sizes, number, rng), rng)


def chosen_of_each(groups: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """bool [n]: counts[g] random members of each group g, or all if it has fewer."""
    order = rng.permutation(len(groups))
    chosen = np.empty(len(groups), bool)
    chosen[order] = first_of_each(groups[order], counts)
    return chosen


def first_of_each(groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """bool [n]: the first counts[g] members of each group g."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups, minlength=len(counts))
    rank = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.empty(len(groups), bool)
    chosen[order] = rank < counts[groups[order]]
    return chosen
