"""What ProtoFSSL shares: who is drawn, what never leaves, noise and its epsilon, and means by masked sums."""

from functools import cache, partial
from itertools import permutations
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import message_sizes
import numpy as np
import pytest
from scipy import stats
from scipy.stats import norm
from small_training import KEY, assert_same, federation_of, rounds_of, training_of

from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.protofssl.method import (
    SUMS,
    client_prototypes,
    drawn,
    of_the_last_round,
    perturbed,
    prototype_store,
    withheld,
)
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.federation.communication import Communication
from jaxfed.testing.method_checks import assert_equal
from jaxfed.training import server_state
from jaxfed.training.local.batches import Batches, ClientData
from jaxfed.training.pseudo_labels.prototypes import Prototypes

C, D = 3, 8
FEDERATION = federation_of([8, 8, 8, 8], num_labeled=5)


@cache  # a method's programs are its own
def method(sums, **changes):
    training = training_of(Batches("joint", size=4, epochs=2))
    task = PrototypeTask(num_classes=C, max_labels=5)
    given = {"prototypes": "global", "num_helpers": 3, "unlabeled_query": 4} | changes
    return protofssl(training=training, task=task, prototype_sums=sums, **given)


def helpers_of(is_present):
    """With numbers that mean nothing where there is no prototype."""
    is_present = np.array(is_present, bool)
    center = np.random.default_rng(0).normal(size=(*is_present.shape, D)).astype(np.float32)
    return Prototypes(center, is_present)


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
    num_means = int(np.sum(before.memory.helpers.is_present))
    assert metrics["communication"]["download"]["prototypes"] == 4 * (1 + 4 * D * num_means)
    upload = metrics["communication"]["upload"]
    assert "prototypes" not in upload
    assert "prototype_epsilon" not in metrics  # without noise nothing is promised
    assert upload["upload"] == message_sizes.class_means(3, C, D)["upload"]


def test_the_mean_is_of_the_helpers_that_were_drawn():
    """As without sums: the same draw among the cohort; prototypes made again by a store of them all."""
    by_one = rounds_of(method("none"), FEDERATION, 1)[1].memory.helpers
    by_one = Prototypes(*map(np.asarray, by_one))
    mean = rounds_of(method("masked"), FEDERATION, 1)[1].memory.helpers
    count = np.sum(by_one.is_present, axis=0)
    expected = np.sum(by_one.center, axis=0, dtype=float) / np.maximum(count, 1)[:, None]
    expected = np.where(count[:, None] >= 2, expected, 0)
    np.testing.assert_allclose(mean.center[0], expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(mean.is_present[0], count >= 2)


def test_with_an_interval_nothing_is_sent_between():
    algorithm = method("masked", helper_interval=2)
    states = rounds_of(algorithm, FEDERATION, 2)
    assert_same(states[1].memory, states[2].memory)
    _, metrics = algorithm.round(states[1], FEDERATION.cohort(), jax.random.fold_in(KEY, 1))
    assert metrics["communication"]["upload"].keys() == {"parameters"}


LEAST = 1e-6  # of a test of chance that is right
CLIENT_ID = np.array([5, -1, 2, 7, 9], np.int32)
IS_THERE = np.array([[1, 0], [1, 1], [0, 1], [0, 0], [1, 1]], bool)  # client 7 shows nothing
KEYS = jax.random.split(KEY, 3000)


def rows_of(**changes):
    one = partial(drawn, client_id=CLIENT_ID, is_present=IS_THERE, num_helpers=2, **changes)
    rows, is_one = map(np.asarray, jax.jit(jax.vmap(one))(KEYS))
    assert is_one.all()
    return list(map(tuple, rows.tolist()))


def test_all_who_show_something_help_equally_likely():
    found, possible = rows_of(), list(permutations([0, 2, 4], 2))
    assert set(found) == set(possible)
    assert stats.chisquare([found.count(pair) for pair in possible]).pvalue > LEAST


def test_who_helps_is_drawn_by_the_clients_own_numbers():
    """However they stand in the cohort, and however much of it is padding."""
    order = np.array([4, 1, 0, 3, 2, 1, 1])
    rows, _ = drawn(KEY, CLIENT_ID, IS_THERE, 2)
    others, _ = drawn(KEY, CLIENT_ID[order], IS_THERE[order], 2)
    np.testing.assert_array_equal(CLIENT_ID[order][others], CLIENT_ID[rows])


def test_the_youngest_help_first_and_of_one_age_all_equally_likely():
    """Row 4 is the youngest, rows 0 and 2 are of one age; padding and who shows nothing are younger."""
    found = rows_of(age=np.array([3, 0, 3, 0, 1], np.int32))
    assert set(found) == {(4, 0), (4, 2)}
    assert stats.binomtest(found.count((4, 0)), len(found)).pvalue > LEAST


def test_clipped_embeddings_are_no_longer_than_is_said_and_short_ones_as_they_are():
    """Of classes 0: lengths 5 and 1; 1: length 0, whose direction nobody knows."""
    model = SimpleNamespace(features=lambda state, x: x)
    x = jnp.array([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    given = jnp.ones(3, bool)
    data = ClientData(x, jnp.array([0, 0, 1]), jnp.ones(3), given, given)
    own = client_prototypes(model, None, data, 0, 2, 2.0)
    np.testing.assert_allclose(own.center, [[0.6, 1.3], [0, 0]], rtol=1e-6)


def test_noise_is_normal_on_what_is_shown():
    is_present = jnp.array([True, False, True])
    shown = Prototypes(jnp.ones((3, 2000)), is_present)
    noise = np.asarray(perturbed(shown, KEY, 0.5).center) - 1
    assert not noise[1].any()
    assert stats.kstest(noise[[0, 2]].ravel() / 0.5, "norm").pvalue > LEAST


def test_what_is_withheld_is_not_in_the_message():
    """Of two given labels of class 0, one of class 1, and two pseudo-labels of it."""
    own = Prototypes(jnp.ones((3, 4)), jnp.array([True, True, False]))
    data = ClientData(
        x=jnp.zeros((6, 1)),
        label=jnp.array([0, 0, 1, 1, 1, 0]),
        weight=jnp.ones(6),
        is_labeled=jnp.arange(6) < 3,
        mask=jnp.arange(6) < 5,
    )
    shown = withheld(own, data, 2)
    np.testing.assert_array_equal(shown.is_present, [True, False, False])
    np.testing.assert_array_equal(shown.center, [[1] * 4, [0] * 4, [0] * 4])


@pytest.mark.parametrize("choice", ["previous_round", "newest"])
def test_a_store_of_many_clients_chooses_the_same_helpers(monkeypatch, choice):
    """Tables beside arrays: also before there are as many as help, and where a round shows nothing."""
    federation, model = federation_of([1] * 9), training_of(Batches("joint", 2, 1)).model
    rng, stores = np.random.default_rng(0), []
    rounds = [
        (ids, rng.normal(size=(3, 3, 8)).astype(np.float32), rng.random((3, 3)) < 0.4)
        for ids in ([0, 1, -1], [1, -1, -1], [4, 6, 8], [2, 3, 4], [7, 0, 1], [5, 2, 6], [8, 3, 1])
    ]
    for limit in (2**40, 0):
        monkeypatch.setattr(server_state, "COPIED_ON_CPU", limit)
        hook = prototype_store(model, 3, 4, 2, choice)
        stores.append([hook.create(model.init(KEY), federation, KEY)])
        for number, (ids, center, is_present) in enumerate(rounds, 1):
            shown = Prototypes(jnp.where(is_present[..., None], center, 0), jnp.asarray(is_present))
            of_round = jnp.int32(ids), shown, jnp.int32(number), jax.random.key(number)
            stores[-1].append(hook.update(stores[-1][-1], *of_round, Communication()))
    for array, table in zip(*stores, strict=True):
        assert_equal(array, table)
        assert_equal(of_the_last_round(array), of_the_last_round(table))
    assert server_state.has_tables(stores[1][-1])


EIGHT_EACH = federation_of([8, 8], num_labeled=6)


def metrics_of(rounds, **changes):
    training = training_of(Batches("joint", size=4, epochs=1))
    task = PrototypeTask(num_classes=3, max_labels=6)
    algorithm = protofssl(training=training, task=task, unlabeled_query=2, **changes)
    state = algorithm.init(KEY, EIGHT_EACH)
    for number in range(rounds):
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, EIGHT_EACH.cohort(), key)
        yield metrics


def test_epsilon_is_that_of_all_rounds_so_far():
    clip, sigma, least, delta = 0.7, 2.0, 2, 1e-4
    seen = list(metrics_of(3, clip=clip, noise=sigma, min_labels=least, delta=delta))
    epsilons = [metrics["prototype_epsilon"] for metrics in seen]
    assert epsilons == sorted(set(epsilons))
    for rounds, epsilon in enumerate(epsilons, start=1):
        a = 2 * clip / least / sigma * np.sqrt(rounds)
        promised = norm.cdf(a / 2 - epsilon / a) - np.exp(epsilon) * norm.cdf(-a / 2 - epsilon / a)
        assert promised == pytest.approx(delta, rel=1e-6)
