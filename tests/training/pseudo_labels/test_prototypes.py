"""Means of a support, and that there are no more helpers than clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import federation_of, rounds_of, training_of

from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels.prototypes import (
    Prototypes,
    class_means,
    log_probabilities,
    sharpened,
    support_means,
)


def test_a_support_has_the_means_of_its_used_rows():
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(12, 5)).astype(np.float32)  # 4 classes, 3 rows of each
    used = np.array([1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 1], bool)
    found = support_means(jnp.asarray(embedding), jnp.asarray(used), 4)
    assert found.is_there.tolist() == [True, True, False, True]
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


@pytest.mark.slow
def test_there_are_no_more_helpers_than_clients():
    federation = federation_of([5, 4, 3])
    made = training_of(Batches("joint", size=4, epochs=1))
    task = PrototypeTask(num_classes=3, max_labels=12)
    algorithm = protofssl(training=made, task=task, num_helpers=10**9, unlabeled_query=4)
    *_, state = rounds_of(algorithm, federation, 1)
    assert state.memory.helpers.is_there.shape[0] == 3


@pytest.mark.slow
def test_the_number_of_labels_is_not_asked_for():
    made = training_of(Batches("joint", size=4, epochs=1))
    federation = federation_of([5, 4, 3], num_labeled=3)

    def after(max_labels):
        task = PrototypeTask(num_classes=3, max_labels=max_labels)
        algorithm = protofssl(training=made, task=task, unlabeled_query=4)
        return rounds_of(algorithm, federation, 1)[-1]

    found, expected = after(0).memory.latest, after(3).memory.latest
    assert np.asarray(found.is_there).any()
    np.testing.assert_allclose(found.center, expected.center, rtol=1e-5, atol=1e-6)


def test_without_any_prototype_all_classes_are_equal():
    """Also where a client's message has numbers in place of the zeros."""
    nobody = Prototypes(jnp.eye(3, 4), jnp.zeros(3, bool))
    np.testing.assert_allclose(jnp.exp(log_probabilities(jnp.eye(2, 4), nobody)), 1 / 3, rtol=1e-6)
