"""Prototypes as XCLP's labeled points: by hand, and equal to examples where a class has one label."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import KEY, assert_same, federation_of, training_of

from jaxfed import xclp
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.federation.cohort import Cohort
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels.propagated_labels import (
    XclpLabels,
    with_prototypes,
)
from jaxfed.training.specification import LabelSources

PARAMETERS = xclp.Parameters(num_classes=3, num_bits=512, num_neighbors=3)


def as_they_are(state, cohort, key):
    del state, key
    return jnp.asarray(cohort.x)


def entered(x, y, mask):
    cohort = Cohort(np.arange(len(y), dtype=np.int32), *map(np.array, (x, y, mask)))
    return with_prototypes(as_they_are, 3)(None, cohort, KEY)


def test_a_prototype_stands_for_a_classs_labels_at_a_client():
    """Client 0: class 2 in rows 0, 3 (and 4, which is padding), class 0 in row 2; client 1: no label."""
    x = np.arange(20, dtype=np.float32).reshape(2, 5, 2)
    y = [[2, -1, 0, 2, 2], [-1, -1, -1, -1, -1]]
    mask = [[True] * 4 + [False], [True] * 5]
    points = entered(x, np.array(y, np.int32), mask)
    np.testing.assert_array_equal(points.y, [[2, -1, 0, -1, -1], [-1] * 5])
    np.testing.assert_array_equal(points.mask, [[True, True, True, False, False], [True] * 5])
    np.testing.assert_array_equal(points.x[0, 0], [3, 4])  # of (0, 1) and (6, 7)
    np.testing.assert_array_equal(points.x[0, 1:3], x[0, 1:3])
    np.testing.assert_array_equal(points.x[1], x[1])


def training_with(**changes):
    training = training_of(Batches("joint", 8, 1), **changes)
    return dataclasses.replace(training, labels=LabelSources(xclp_parameters=PARAMETERS))


def played(federation, pseudo_label):
    algorithm = fedavg(training=training_with(), pseudo_label=pseudo_label)
    state = algorithm.init(KEY, federation)
    return algorithm.round(state, federation.cohort(), jax.random.fold_in(KEY, 0))


def one_label_a_class(federation):
    """The federation with the first label of each class at each client; the others are unlabeled."""
    partition = federation.partition
    labeled, unlabeled = [], []
    for own, others in zip(partition.labeled, partition.unlabeled, strict=True):
        first = np.sort(own[np.unique(federation.y[own], return_index=True)[1]])
        labeled.append(first)
        unlabeled.append(np.concatenate([np.setdiff1d(own, first), others]))
    partition = partition._replace(labeled=tuple(labeled), unlabeled=tuple(unlabeled))
    return dataclasses.replace(federation, partition=partition)


@pytest.mark.slow
def test_with_one_label_a_class_prototypes_are_the_labeled_points():
    federation = one_label_a_class(federation_of([12, 9, 14], num_labeled=6))
    (state, metrics), (other, of_prototypes) = (
        played(federation, name) for name in ("xclp", "xclp_prototypes")
    )
    assert_same(state.model, other.model)
    assert metrics["communication"] == of_prototypes["communication"]


@pytest.mark.slow
def test_fewer_points_carry_labels_and_less_is_sent():
    federation = federation_of([12, 9, 14], num_labeled=6)
    (_, metrics), (_, of_prototypes) = (
        played(federation, name) for name in ("xclp", "xclp_prototypes")
    )
    sent, less = (m["communication"]["upload"]["codes"] for m in (metrics, of_prototypes))
    classes = sum(len(np.unique(federation.y[p])) for p in federation.partition.labeled)
    assert less / sent == pytest.approx((35 - 18 + classes) / 35)


def test_prototypes_are_the_labeled_points_of_xclp():
    """Whose labels are Algorithm 1's: test_pseudo_label. A prototype is in the row of its first label."""
    federation = federation_of([12, 9, 14], num_labeled=6)
    training = training_with()
    state, cohort = fedavg(training=training).init(KEY, federation), federation.cohort()
    source = training.pseudo_labels["xclp_prototypes"]
    assert isinstance(source, XclpLabels)
    assert source.parameters == PARAMETERS
    points = source.points(state, cohort, KEY)
    x = np.array(training.model.features(state.model, cohort.x.reshape(-1, 4)))
    x, y, mask = x.reshape(*cohort.mask.shape, -1), np.array(cohort.y), np.array(cohort.mask)
    for row in range(3):
        for k in range(3):
            own = np.flatnonzero(mask[row] & (cohort.y[row] == k))
            if len(own):
                x[row, own[0]] = x[row, own].mean(axis=0)
                y[row, own[1:]], mask[row, own[1:]] = -1, False
    assert mask.sum() < cohort.mask.sum()
    np.testing.assert_array_equal(points.mask, mask)
    np.testing.assert_array_equal(np.asarray(points.y)[mask], y[mask])
    np.testing.assert_allclose(np.asarray(points.x)[mask], x[mask], rtol=1e-5, atol=1e-6)
