"""What is drawn where prototypes are shared, and what of them never leaves."""

from functools import partial
from itertools import permutations
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from small_training import KEY, federation_of, training_of

from jaxfed.algorithms.protofssl.method import (
    client_prototypes,
    drawn,
    of_the_last_round,
    perturbed,
    prototype_store,
    withheld,
)
from jaxfed.federation.communication import Communication
from jaxfed.testing.method_checks import assert_equal
from jaxfed.training import server_state
from jaxfed.training.local.batches import Batches, ClientData
from jaxfed.training.pseudo_labels.prototypes import Prototypes

LEAST = 1e-6  # of a test of chance that is right
CLIENT_ID = np.array([5, -1, 2, 7, 9], np.int32)
IS_THERE = np.array([[1, 0], [1, 1], [0, 1], [0, 0], [1, 1]], bool)  # client 7 shows nothing
KEYS = jax.random.split(KEY, 3000)


def rows_of(**changes):
    one = partial(drawn, client_id=CLIENT_ID, is_there=IS_THERE, num_helpers=2, **changes)
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
    is_there = jnp.array([True, False, True])
    shown = Prototypes(jnp.ones((3, 2000)), is_there)
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
    np.testing.assert_array_equal(shown.is_there, [True, False, False])
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
        for number, (ids, center, is_there) in enumerate(rounds, 1):
            shown = Prototypes(jnp.where(is_there[..., None], center, 0), jnp.asarray(is_there))
            of_round = jnp.int32(ids), shown, jnp.int32(number), jax.random.key(number)
            stores[-1].append(hook.update(stores[-1][-1], *of_round, Communication()))
    for array, table in zip(*stores, strict=True):
        assert_equal(array, table)
        assert_equal(of_the_last_round(array), of_the_last_round(table))
    assert server_state.has_tables(stores[1][-1])
