"""Each client's rows in three arrays: the same sequence as a tuple of arrays, client by client."""

import numpy as np
import pytest

from jaxfed.data import ClientRows, Partition
from jaxfed.federation.clients import Federation

SIZES = ([], [0], [3], [2, 0, 4], [0, 0, 1], [1] * 7)


def tuples(sizes, rng):
    rows = rng.permutation(sum(sizes) + 3)[: sum(sizes)]
    return tuple(np.split(rows, np.cumsum(sizes)[:-1])) if sizes else ()


def same(found, wanted):
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == np.int64


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_the_tuple_of_its_arrays(sizes, seed):
    rng = np.random.default_rng(seed)
    theirs = tuples(sizes, rng)
    ours = ClientRows.of(theirs)
    same(ours, theirs)
    same([ours[k] for k in range(-len(sizes), len(sizes))], theirs * 2)
    first, step = int(rng.integers(3)), int(rng.integers(1, 3))
    same(ours[first::step], theirs[first::step])
    np.testing.assert_array_equal(ours.sizes, [len(rows) for rows in theirs])
    joined = np.concatenate([np.zeros(0, np.int64), *theirs])
    np.testing.assert_array_equal(ours.joined, joined)
    np.testing.assert_array_equal(ours.owner, np.repeat(np.arange(len(sizes)), sizes))
    keep = rng.random(len(joined)) < 0.5
    parts = np.split(keep, np.cumsum(sizes)[:-1]) if sizes else []
    same(ours.chosen(keep), [rows[part] for rows, part in zip(theirs, parts, strict=True)])
    order = rng.permutation(len(joined))
    grouped = ClientRows.by_owner(joined[order], ours.owner[order], len(sizes))
    same(map_sorted(grouped), map_sorted(theirs))
    with pytest.raises(IndexError):
        ours[len(sizes)]


def map_sorted(clients):
    return list(map(np.sort, clients))


def test_rows_side_by_side_need_no_array():
    ours = ClientRows(np.array([4, 0]), np.array([2, 3]))
    same(ours, [[4, 5], [0, 1, 2]])
    np.testing.assert_array_equal(ours.joined, [4, 5, 0, 1, 2])
    same(ClientRows.contiguous([5, 2, 0, 1])[1:], [[5, 6], [], [7]])


@pytest.mark.parametrize("seed", range(5))
def test_a_federation_is_the_same_by_either(seed):
    rng = np.random.default_rng(seed)
    rows = np.split(rng.permutation(60), [7, 7, 9, 20, 33, 40, 44, 51, 60])
    theirs = Partition(*(tuple(rows[part : part + 3]) for part in (0, 3, 6)))
    ours = Partition(*map(ClientRows.of, theirs))
    x, y = rng.normal(size=(60, 2)).astype(np.float32), rng.integers(-1, 3, 60).astype(np.int32)
    y[np.concatenate(theirs.labeled)] %= 3
    pair = [Federation(x, y, part, 3) for part in (theirs, ours)]
    for change in (
        lambda f: f,
        Federation.without_unlabeled,
        Federation.fully_labeled,
        Federation.pooled,
        lambda f: f.leave_out(2),
    ):
        one, other = map(change, pair)
        for mine, wanted in zip(other.partition, one.partition, strict=True):
            same(mine, wanted)
        np.testing.assert_array_equal(other.cohort().x, one.cohort().x)
        np.testing.assert_array_equal(other.normalization, one.normalization)
        for name in ("capacity", "max_labels", "label_counts", "max_labels_of_a_class"):
            assert getattr(one, name) == getattr(other, name)
        assert one.label_counts == [len(rows) for rows in one.partition.labeled]
        points = [one.points(client) for client in range(one.num_clients)]
        same(other.partition.joined, points)
        same(one.partition.joined, points)
    counts = [np.bincount(y[rows], minlength=3).max(initial=0) for rows in theirs.labeled]
    assert pair[1].max_labels_of_a_class == max(counts)
