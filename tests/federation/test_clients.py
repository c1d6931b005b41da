from dataclasses import replace

import numpy as np
import pytest

from jaxfed.data import Partition
from jaxfed.federation.clients import Federation


def indices(*lists):
    return tuple(np.array(items, np.int64) for items in lists)


@pytest.fixture
def federation():
    """Three clients, the last one empty; ten points of one feature, its own number."""
    return Federation(
        x=np.arange(10, dtype=np.float32)[:, None],
        y=np.arange(10, dtype=np.int32) % 3,
        partition=Partition(
            labeled=indices([4], [1, 2], []),
            unlabeled=indices([0, 3], [5], []),
            new=indices([6], [7, 8, 9], []),
        ),
        num_classes=3,
    )


def test_cohort_orders_labeled_unlabeled_new_and_pads(federation):
    cohort = federation.cohort([1, 0, 2])
    np.testing.assert_array_equal(cohort.client_id, [1, 0, 2])
    np.testing.assert_array_equal(
        cohort.x[..., 0], [[1, 2, 5, 7, 8, 9], [4, 0, 3, 6, 0, 0], [0] * 6]
    )
    np.testing.assert_array_equal(
        cohort.y, [[1, 2, -1, -1, -1, -1], [1, -1, -1, -1, -1, -1], [-1] * 6]
    )
    np.testing.assert_array_equal(cohort.mask.sum(axis=1), [6, 4, 0])
    assert federation.cohort().x.shape == (3, 6, 1)


def test_fully_labeled(federation):
    known = federation.fully_labeled()
    for client in range(federation.num_clients):
        np.testing.assert_array_equal(known.points(client), federation.points(client))
        expected = np.concatenate(
            [federation.partition.labeled[client], federation.partition.unlabeled[client]]
        )
        np.testing.assert_array_equal(known.partition.labeled[client], expected)
        assert len(known.partition.unlabeled[client]) == 0


def test_points_of_unknown_class_stay_unlabeled(federation):
    y = federation.y.copy()
    y[[0, 5]] = -1
    federation = replace(federation, y=y)
    known = federation.fully_labeled().partition
    np.testing.assert_array_equal(known.labeled[0], [4, 3])
    np.testing.assert_array_equal(known.unlabeled[0], [0])
    np.testing.assert_array_equal(known.labeled[1], [1, 2])
    np.testing.assert_array_equal(known.unlabeled[1], [5])
    left = federation.leave_out(0).partition
    assert len(left.labeled[0]) == 0
    np.testing.assert_array_equal(left.unlabeled[0], [0])
    np.testing.assert_array_equal(left.new[0], [4, 3, 6])
    np.testing.assert_array_equal(left.unlabeled[1], [5])


def arrays(first, count, classes=3):
    x = np.arange(first, first + count, dtype=np.float32)[:, None]
    return x, np.arange(first, first + count) % classes


def test_public_examples_are_nobodys_own_and_come_without_labels():
    x, y = arrays(10, 4)
    public = (x, np.where(x[:, 0] == 11, -1, y))
    federation = Federation.from_clients([arrays(0, 5), arrays(5, 5)], public=public)
    np.testing.assert_array_equal(federation.public_examples, x)
    np.testing.assert_array_equal(federation.y[federation.public], [1, -1, 0, 1])
    assert federation.public_labels is None
    assert federation.capacity == 5
    assert federation.cohort().x.max() == 9
    labeled = Federation.from_clients([arrays(0, 5)], public=(x, y), public_labeled=True)
    np.testing.assert_array_equal(labeled.public_labels, y)
    assert len(Federation.from_clients([arrays(0, 5)]).public_examples) == 0
    alone = Federation.from_clients([arrays(0, 5), arrays(5, 5)], public=x)
    np.testing.assert_array_equal(alone.public_examples, x)
    assert (alone.y[alone.public] == -1).all()


def test_repeats_have_cohorts_of_one_shape(federation):
    roomy = replace(federation, room=np.array([8, 4, 1]))
    assert (roomy.capacity, roomy.largest) == (8, 6)
    own, padded = federation.cohort([0, 1]), roomy.cohort([0, 1])
    assert padded.x.shape == (2, 8, 1)
    np.testing.assert_array_equal(padded.x[:, :6], own.x)
    np.testing.assert_array_equal(padded.y[:, :6], own.y)
    np.testing.assert_array_equal(padded.mask[:, :6], own.mask)
    assert not padded.mask[:, 6:].any()
    many = replace(federation, room=np.array([300, 200, 1]))
    assert many.cohort([0, 1], ragged=True).x.rows.shape[0] >= 500
    assert replace(federation, room=np.array([2])).capacity == federation.capacity == 6
    assert roomy.pooled().capacity == 10
