"""States of many clients: bits, memory and errors, beside the arrays of few."""

import itertools
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import KEY, federation_of, rounds_of, training_of

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.scaffold import scaffold
from jaxfed.federation.evaluate import evaluated_by
from jaxfed.host.row_table import RowTable
from jaxfed.testing.method_checks import assert_equal
from jaxfed.training import server_state
from jaxfed.training.local.batches import Batches
from jaxfed.training.server_state import (
    CohortRows,
    gather,
    of_cohort,
    rows_for,
    scatter,
    took_part,
    without_tables,
    written_back,
)

ONE = {"w": jnp.float32([1, 2]), "n": jnp.int32(3)}
State = namedtuple("State", "model clients")


@pytest.fixture
def small(monkeypatch):
    """Every state of clients is a table."""
    monkeypatch.setattr(server_state, "COPIED_ON_CPU", 0)


def test_few_bytes_are_an_array_and_many_a_table():
    most = server_state.COPIED_ON_CPU // 12
    few, many = (rows_for(number, ONE)["w"] for number in (most, most + 1))
    assert isinstance(few, jax.Array)
    assert isinstance(many, RowTable)
    assert (few.shape, many.shape) == ((most, 2), (most + 1, 2))
    alone = rows_for(1, jnp.zeros(10**6))
    assert isinstance(alone, jax.Array)  # of a client on a network
    forms = jax.eval_shape(lambda: rows_for(10**6, {"w": jnp.zeros(9)}))
    assert forms["w"].shape == (10**6, 9)


@pytest.mark.parametrize("ids", [[4, 0, -1], [-1], [2, 3, 1, -2]])
def test_a_table_is_read_and_written_as_an_array_and_inside_a_program(small, ids):
    ids = np.int32(ids)
    array, table = server_state.stacked_for(5, ONE), rows_for(5, ONE)
    new = {"w": jnp.arange(2.0 * len(ids)).reshape(-1, 2), "n": jnp.arange(len(ids))}
    after = scatter(array, ids, new)
    assert_equal(gather(array, ids), gather(table, ids))
    assert_equal(after, scatter(table, ids, new))

    @jax.jit
    def program(state):
        assert len(state.clients["w"]) == 5
        found = gather(state.clients, ids)
        return state._replace(clients=scatter(state.clients, ids, new)), found

    state = State((), table)
    there, found = program(of_cohort(state, ids))
    assert_equal(found, gather(array, ids))
    assert isinstance(there.clients["w"], CohortRows)
    assert_equal(written_back(state, there, ids).clients, after)
    assert_equal(table, array)  # as before
    assert set(took_part(written_back(state, there, ids).clients)) == set(ids[ids >= 0])


def test_different_states_of_clients(small, monkeypatch):
    rows = {"key": jax.random.split(KEY, 4), "w": jnp.arange(4.0)}
    asked = []

    def make(numbers):
        asked.append(len(numbers))
        return jax.tree.map(lambda leaf: leaf[numbers], rows)

    monkeypatch.setattr(server_state, "_BLOCK", 3 * 12)  # of three clients
    table = server_state.rows_of_clients(4, make)
    assert asked == [1, 3, 1]
    assert_equal(table, rows)
    assert table["key"].dtype == rows["key"].dtype
    assert isinstance(table["w"], RowTable)


def rounds(method, federation, **changes):
    training = training_of(Batches("joint", 2, 1), **changes)
    cohorts = itertools.repeat([5, 1, 3])
    return rounds_of(method(training=training), federation, 3, list(itertools.islice(cohorts, 3)))


@pytest.mark.parametrize("strategy", ["map", "vmap"])
@pytest.mark.sample(1)
def test_rounds_have_the_bits_of_arrays(monkeypatch, strategy):
    """SCAFFOLD with kept optimizers: a state of each kind."""
    changes = {"batch_norm": True, "client_optimizer": "kept"}
    found = []
    for limit in (2**40, 0):
        monkeypatch.setattr(server_state, "COPIED_ON_CPU", limit)
        found.append(rounds(scaffold, federation_of([4] * 7), strategy=strategy, **changes))
    arrays, tables = found
    assert server_state.has_tables(tables[0].clients)
    assert not server_state.has_tables(arrays[0].clients)
    for array, table in zip(arrays, tables, strict=True):  # each is still as it was
        assert_equal(array, table)


def test_selection_keeps_the_model_of_a_network_alone(small):
    federation = federation_of([2] * 6)
    for method, is_left in ((scaffold, True), (fedavg, False)):
        training = training_of(Batches("joint", 2, 1))
        algorithm = method(training=training)
        state = algorithm.init(KEY, federation)
        kept = evaluated_by(algorithm)(state)
        assert (kept.clients == () and kept is not state) is is_left
        assert algorithm.evaluate(kept, federation) == algorithm.evaluate(state, federation)
    assert without_tables(state) is state
