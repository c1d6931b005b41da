"""Prototypes: means of a support, their probabilities, and as XCLP's labeled points."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import KEY, federation_of, training_of

from jaxfed import xclp
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels.propagated_labels import (
    XclpLabels,
)
from jaxfed.training.pseudo_labels.prototypes import (
    Prototypes,
    class_means,
    log_probabilities,
    sharpened,
    support_means,
)
from jaxfed.training.specification import LabelSources


def test_a_support_has_the_means_of_its_used_rows():
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(12, 5)).astype(np.float32)  # 4 classes, 3 rows of each
    used = np.array([1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 1], bool)
    found = support_means(jnp.asarray(embedding), jnp.asarray(used), 4)
    assert found.is_present.tolist() == [True, True, False, True]
    for k in (0, 1, 3):
        rows = slice(3 * k, 3 * k + 3)
        np.testing.assert_allclose(
            found.center[k], embedding[rows][used[rows]].mean(axis=0), rtol=1e-6
        )
    assert not found.center[2].any()


@pytest.mark.parametrize("means", ["support", "class"])
def test_a_query_of_hundreds_of_rows_has_a_gradient(means):
    # Where products have the derivative the process ends here, with jaxlib 0.10 on a CPU.
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(310, 128))

    def loss(z):
        used = jnp.ones(10, bool)
        if means == "support":
            own = support_means(z[:10], used, 10)
        else:
            own = class_means(z[:10], jnp.arange(10), used, 10)
        return jnp.sum(log_probabilities(z[10:], own)[:, 0])

    z, c = embedding[10:], embedding[:10]
    apart = z[:, None] - c
    distance = np.sqrt(np.square(apart).sum(axis=-1))
    p = np.exp(-distance) / np.exp(-distance).sum(axis=1, keepdims=True)
    towards = (p - np.eye(10)[0])[..., None] * apart / distance[..., None]
    expected = np.concatenate([-towards.sum(axis=0), towards.sum(axis=1)])
    found = jax.jit(jax.grad(loss))(jnp.asarray(embedding, jnp.float32))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_sharpening_underflows_at_no_temperature():
    p = np.array([[0.4, 0.2, 0.4], [0.0, 0.0, 0.0], [0.0, 1e-3, 0.999]], np.float32)
    expected = [[0.5, 0, 0.5], [0, 0, 0], [0, 0, 1]]
    np.testing.assert_allclose(sharpened(jnp.asarray(p), 1e-3), expected, atol=1e-6)
    even = p.astype(np.float64) ** 2 / np.array([[0.36], [1], [0.998002]])
    np.testing.assert_allclose(sharpened(jnp.asarray(p), 0.5), even, rtol=1e-5)


def test_without_any_prototype_all_classes_are_equal():
    """Also where a client's message has numbers in place of the zeros."""
    nobody = Prototypes(jnp.eye(3, 4), jnp.zeros(3, bool))
    np.testing.assert_allclose(jnp.exp(log_probabilities(jnp.eye(2, 4), nobody)), 1 / 3, rtol=1e-6)


PARAMETERS = xclp.Parameters(num_classes=3, num_bits=512, num_neighbors=3)


def training_with(**changes):
    training = training_of(Batches("joint", 8, 1), **changes)
    return dataclasses.replace(training, labels=LabelSources(xclp_parameters=PARAMETERS))


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
