"""Means of helpers' prototypes in ProtoFSSL's rounds: in the clear, and by masked sums the same."""

from functools import cache

import jax
import message_sizes
import numpy as np
import pytest
from small_training import KEY, assert_same, federation_of, rounds_of, training_of

from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.protofssl.method import SUMS, drawn
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.federation.communication import Communication
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels.prototypes import Prototypes

C, D = 3, 8
FEDERATION = federation_of([8, 8, 8, 8], num_labeled=5)


@cache  # a method's programs are its own
def method(sums, **changes):
    training = training_of(Batches("joint", size=4, epochs=2))
    task = PrototypeTask(num_classes=C, max_labels=5)
    given = {"prototypes": "global", "num_helpers": 3, "unlabeled_query": 4} | changes
    return protofssl(training=training, task=task, prototype_sums=sums, **given)


def helpers_of(is_there):
    """With numbers that mean nothing where there is no prototype."""
    is_there = np.array(is_there, bool)
    center = np.random.default_rng(0).normal(size=(*is_there.shape, D)).astype(np.float32)
    return Prototypes(center, is_there)


@pytest.mark.parametrize("sums", SUMS)
def test_a_class_has_the_mean_of_the_helpers_that_show_it(sums):
    helpers = helpers_of([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    center, count = SUMS[sums](helpers, Communication())
    assert count.tolist() == [3, 2, 0]  # one helper alone shows the last
    double = helpers.center.astype(float)
    np.testing.assert_allclose(center[0], double[:, 0].mean(axis=0), atol=2**-40)
    np.testing.assert_allclose(center[1], double[[0, 2], 1].mean(axis=0), atol=2**-40)
    assert not center[2].any()


def test_bytes_in_the_clear():
    """Six prototypes, and a byte of bits of each helper; who shows nothing sends nothing."""
    communication = Communication()
    SUMS["plaintext"](helpers_of([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]]), communication)
    assert communication.upload == {"prototypes": 3 + 6 * 4 * D}


@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
def test_masks_are_double_where_that_is_said(sums):
    communication = Communication()
    SUMS[sums](helpers_of([[1, 1, 0], [1, 0, 0]]), communication)
    assert ("secrets" in communication.upload) == (sums == "masked_resilient")


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("number", [0, 1])
def test_one_helper_alone_shows_nothing(sums, number):
    communication = Communication()
    _, count = SUMS[sums](helpers_of([[1, 1, 1]] * number or np.zeros((0, C))), communication)
    assert not count.any()


@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
@pytest.mark.sample(1)
def test_rounds_are_those_with_sums_in_the_clear(sums):
    """Fixed-point error ends below float32, of numbers like these: the same networks, bit for bit."""
    ours, plain = (rounds_of(method(kind), FEDERATION, 3) for kind in (sums, "plaintext"))
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(
            one.memory.helpers.center, other.memory.helpers.center, rtol=1e-6, atol=1e-7
        )
    assert_same(ours[2].model, plain[2].model)  # trained on the first mean
    assert ours[-1].memory.helpers.center.any()


def test_the_server_keeps_and_sends_one_mean():
    algorithm, key = method("masked"), jax.random.fold_in(KEY, 1)
    before = rounds_of(algorithm, FEDERATION, 1)[1]
    assert [leaf.shape for leaf in jax.tree.leaves(before.memory)] == [(1, C, D), (1, C)]
    _, metrics = algorithm.round(before, FEDERATION.cohort(), key)
    num_means = int(np.sum(before.memory.helpers.is_there))
    assert metrics["communication"]["download"]["prototypes"] == 4 * (1 + 4 * D * num_means)
    upload = metrics["communication"]["upload"]
    assert "prototypes" not in upload
    assert upload["upload"] == message_sizes.class_means(3, C, D)["upload"]


def test_the_mean_is_of_the_helpers_that_were_drawn():
    """As without sums: the same draw among the cohort; prototypes made again by a store of them all."""
    by_one = rounds_of(method("none"), FEDERATION, 1)[1].memory.helpers
    by_one = Prototypes(*map(np.asarray, by_one))
    mean = rounds_of(method("masked"), FEDERATION, 1)[1].memory.helpers
    count = np.sum(by_one.is_there, axis=0)
    expected = np.sum(by_one.center, axis=0, dtype=float) / np.maximum(count, 1)[:, None]
    expected = np.where(count[:, None] >= 2, expected, 0)
    np.testing.assert_allclose(mean.center[0], expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(mean.is_there[0], count >= 2)


def test_with_an_interval_nothing_is_sent_between():
    algorithm = method("masked", helper_interval=2)
    states = rounds_of(algorithm, FEDERATION, 2)
    assert_same(states[1].memory, states[2].memory)
    _, metrics = algorithm.round(states[1], FEDERATION.cohort(), jax.random.fold_in(KEY, 1))
    assert metrics["communication"]["upload"].keys() == {"parameters"}


def test_a_state_classifies_by_the_mean():
    algorithm = method("masked")
    state = rounds_of(algorithm, FEDERATION, 1)[1]
    test = FEDERATION.test
    training = training_of(Batches("joint", size=4, epochs=2))
    z = np.asarray(training.model.features(state.model, FEDERATION.x[test]))
    mean = state.memory.helpers
    distance = np.linalg.norm(z[:, None] - np.asarray(mean.center)[0], axis=-1)
    distance[:, ~np.asarray(mean.is_there)[0]] = np.inf
    found = algorithm.predict(state, FEDERATION.x[test]).argmax(axis=1)
    np.testing.assert_array_equal(found, distance.argmin(axis=1))


def test_who_shows_nothing_is_not_drawn():
    client_id, is_there = np.array([3, 5, 7, -1]), np.array([[1], [0], [1], [1]], bool)
    rows, is_one = drawn(KEY, client_id, is_there, 3)
    assert sorted(np.asarray(rows)[np.asarray(is_one)].tolist()) == [0, 2]
