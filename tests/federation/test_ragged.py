"""Examples without room for what clients do not have: they read like the padded array, and are few rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import (
    Ragged,
    apart,
    arranged,
    joined,
    length_for,
    own_examples,
    padded,
)


def federation_of(sizes):
    rng = np.random.default_rng(0)
    return Federation.from_clients(
        [
            (rng.standard_normal((n, 2, 3)).astype(np.float32), rng.integers(-1, 2, n))
            for n in sizes
        ],
        num_classes=2,
    )


def both(federation, clients=None):
    return (federation.cohort(clients, ragged=ragged) for ragged in (False, True))


def test_it_reads_like_the_padded_array():
    whole, ragged = both(federation_of([3, 0, 40, 7]), [3, 0, 1, 2])
    assert isinstance(ragged.x, Ragged)
    assert ragged.x.shape == whole.x.shape
    assert ragged.x.dtype == whole.x.dtype
    assert len(ragged.x) == 4
    np.testing.assert_array_equal(ragged.x, whole.x)
    np.testing.assert_array_equal(jax.jit(jnp.asarray)(ragged.x), whole.x)
    np.testing.assert_array_equal(ragged.x[3, 5:], whole.x[3, 5:])
    for own, padded_own, mask in zip(own_examples(ragged.x), whole.x, whole.mask, strict=True):
        np.testing.assert_array_equal(own, padded_own[mask])
    for name in ("client_id", "y", "mask"):
        np.testing.assert_array_equal(getattr(ragged, name), getattr(whole, name))
    values = jnp.arange(len(ragged.x.rows), dtype=jnp.float32)
    np.testing.assert_array_equal(ragged.x.padded(values, -1)[:, 0], [0, 7, -1, 10])


def test_order_and_empty_clients():
    federation = federation_of([3, 0, 40, 7])
    for change in (
        lambda cohort: arranged(cohort, 3),
        lambda cohort: padded(cohort, 5),
        lambda cohort: padded(arranged(cohort), 6),
    ):
        whole, ragged = map(change, both(federation, [2, 0, 3]))
        assert isinstance(ragged.x, Ragged)
        jax.tree.map(np.testing.assert_array_equal, whole[:1], ragged[:1])
        np.testing.assert_array_equal(ragged.x, whole.x)
        # Rows of clients follow each other in the clients' order: ties between points go by it.
        assert (np.diff(ragged.x.start[ragged.x.size > 0]) > 0).all()


def test_one_client_in_a_compiled_program():
    whole, ragged = both(federation_of([3, 0, 40, 7]))
    shared, own = apart(ragged.x)

    @jax.jit
    def rows(shared, own, index):
        x = joined(shared, own)
        assert x.shape == (40, 2, 3)
        return x[index], x[:2]

    for client, size in enumerate((3, 0, 40, 7)):
        one = jax.tree.map(lambda leaf, client=client: leaf[client], own)
        index = jnp.arange(max(size, 1))
        taken, first = rows(shared, one, index)
        np.testing.assert_array_equal(taken[:size], whole.x[client, :size])
        np.testing.assert_array_equal(first[: min(size, 2)], whole.x[client, : min(size, 2)])


@pytest.mark.parametrize("sizes", [[50, 20, 30], [400] * 100, [200, 300, 400] * 30])
def test_clients_of_like_size_stay_padded(sizes):
    assert isinstance(federation_of(sizes).cohort().x, np.ndarray)


def test_a_client_may_stand_there_twice():
    whole, ragged = both(federation_of([3, 400, 7]), [1, 1, 0])
    np.testing.assert_array_equal(ragged.x, whole.x)
    order = np.array([0, 1, 0, 1, 0])  # more rows than there were
    np.testing.assert_array_equal(ragged.x.of(order), whole.x[order])


def test_of_all_counts_lengths_are_few_and_none_far_above():
    lengths = [length_for(count, 100_000) for count in range(1, 100_000, 97)]
    assert len(set(lengths)) <= 18
    for count, length in zip(range(1, 100_000, 97), lengths, strict=True):
        assert length <= max(256, 1.5 * count + 512)
