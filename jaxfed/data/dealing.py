"""Integer tables of clients x classes: scaled to given sums, and rounded without losing an example."""

from __future__ import annotations

import numpy as np

_MAX_SCALINGS = 200  # far beyond convergence for tables without zeros; bounds the others
_SMALLEST = (
    1e-100  # weights below, as tiny Dirichlet parameters draw, would overflow when scaled up
)


def deal(weights: np.ndarray, totals: np.ndarray, sizes: np.ndarray | None) -> np.ndarray:
    """Deal `totals[c]` examples of each class to clients in proportion to `weights`.

    With `sizes`, rows and columns are scaled in turn (Sinkhorn) until client m holds about sizes[m]; where
    zeros in the weights do not allow that, columns win. Rounding carries each client's remainder from
    class to class, so that sizes are met to about one.

    Args:
        weights: float [M, C]; a class with examples but no weight is dealt evenly.
        totals: int [C].
        sizes: float [M], or None.

    Returns:
        int64 [M, C]; column sums are exactly `totals`.
    """
    weights = np.asarray(weights, np.float64)
    weights = np.where(weights > 0, np.maximum(weights, _SMALLEST), 0.0)
    weights = np.where(weights.sum(axis=0) > 0, weights, 1.0)
    exact = weights / weights.sum(axis=0) * totals
    if sizes is not None:
        for _ in range(_MAX_SCALINGS):
            rows = exact.sum(axis=1)
            if np.abs(rows - sizes).max(initial=0) < 1e-3:
                break
            exact *= (sizes / np.where(rows > 0, rows, 1))[:, None]
            columns = exact.sum(axis=0)
            exact *= np.where(columns > 0, totals / np.where(columns > 0, columns, 1), 1)
        # A class that only clients of size 0 are drawn to has lost its examples: deal it evenly.
        lost = (exact.sum(axis=0) <= 0) & (totals > 0)
        exact[:, lost] = totals[lost] / len(exact)
    counts = np.zeros(exact.shape, np.int64)
    carried = np.zeros(len(exact))
    for c in range(exact.shape[1]):
        allowed = exact[:, c] > 0
        wanted = np.where(allowed, np.maximum(exact[:, c] + carried, 0), 0)
        if wanted.sum() <= 0:
            wanted = exact[:, c]
        counts[:, c] = apportion(wanted, int(totals[c]))
        carried += exact[:, c] - counts[:, c]
    return counts


def apportion(exact: np.ndarray, total: int) -> np.ndarray:
    """Round non-negative numbers to integers of the given sum, by largest remainder.

    They are scaled to that sum first; of equal remainders the first is rounded up; zeros stay zero.
    """
    exact = np.asarray(exact, np.float64)
    largest = exact.max(initial=0)
    if largest <= 0:
        if total:
            raise ValueError("nothing to apportion to")
        return np.zeros(len(exact), np.int64)
    exact = exact / largest  # sums neither overflow nor underflow
    exact = exact * (total / exact.sum())
    counts = np.floor(exact + 1e-9).astype(np.int64)
    remainder = exact - counts
    remainder[exact == 0] = -np.inf
    missing = total - int(counts.sum())
    if missing > 0:
        counts[np.argsort(-remainder, kind="stable")[:missing]] += 1
    return counts


def round_rows(exact: np.ndarray, row_sums: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Round a table so that row m sums to row_sums[m], within the room there is.

    Rows are rounded one after another, each class's remainder carried on to the next, so that columns come
    out near their exact sums too. What does not fit goes to the row's other classes, those with a
    positive entry first.

    Args:
        exact: float [M, C].
        row_sums: int [M].
        room: int [M, C], the most each entry may hold; or int [C], the most each column may hold. It must
            have room for `row_sums`.
    """
    counts = np.zeros(exact.shape, np.int64)
    carried = np.zeros(exact.shape[1])
    left_in_column = room.copy() if room.ndim == 1 else None
    for m, total in enumerate(row_sums):
        free = room[m] if left_in_column is None else left_in_column
        row = np.minimum(np.floor(exact[m] + 1e-9).astype(np.int64), free)
        order = np.lexsort((-(exact[m] - row + carried), exact[m] <= 0))
        for _ in range(exact.shape[1] + 1):
            missing = int(total - row.sum())
            if missing == 0:
                break
            open_entries = order[row[order] < free[order]]
            positive = open_entries[exact[m][open_entries] > 0]
            candidates = positive if len(positive) else open_entries
            if missing < len(candidates):
                row[candidates[:missing]] += 1
            else:
                share = max(missing // len(candidates), 1)
                row[candidates] = np.minimum(row[candidates] + share, free[candidates])
        counts[m] = row
        carried += exact[m] - row
        if left_in_column is not None:
            left_in_column -= row
    return counts


def fill_up(counts: np.ndarray, smallest: np.ndarray) -> None:
    """Move examples, in place, until client m has smallest[m], from whoever can spare the most.

    At most sum(smallest) moves.

    Raises:
        ValueError: there are fewer than sum(smallest) examples.
    """
    if smallest.sum() > counts.sum():
        raise ValueError(f"{counts.sum()} examples cannot fill up {smallest.sum()} places")
    sizes = counts.sum(axis=1)
    for client in np.flatnonzero(sizes < smallest):
        while sizes[client] < smallest[client]:
            giver = int(np.argmax(sizes - smallest))
            c = int(np.argmax(counts[giver]))
            counts[giver, c] -= 1
            counts[client, c] += 1
            sizes[giver] -= 1
            sizes[client] += 1
