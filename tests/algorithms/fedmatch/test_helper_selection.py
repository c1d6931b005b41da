"""Who helps whom, the input that decides it, and what the server sends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, truncnorm
from small_training import KEY, assert_same, federation_of, training_of

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fedmatch import (
    Seen,
    helper_sender,
    nearest_clients,
    random_input,
)
from jaxfed.federation.communication import Communication
from jaxfed.host.row_table import RowTable
from jaxfed.models.mlp import mlp
from jaxfed.training.local.batches import Batches
from jaxfed.training.server_state import scatter, stacked_for


@given(st.integers(0, 2**31 - 1), st.integers(1, 6), st.integers(1, 3))
def test_helpers_are_the_nearest_others(seed, num_clients, num_helpers):
    rng = np.random.default_rng(seed)
    outputs, known = rng.random((num_clients, 3)), rng.random(num_clients) < 0.7
    client_id = np.append(rng.permutation(num_clients), -1).astype(np.int32)
    seen_id = np.flatnonzero(known)
    found = nearest_clients(outputs[seen_id], seen_id, client_id, num_helpers)
    for client, helpers in zip(client_id, found, strict=True):
        others = [k for k in np.flatnonzero(known) if k != client]
        others.sort(key=lambda k, c=client: np.linalg.norm(outputs[k] - outputs[c]))
        wanted = others[:num_helpers] if client >= 0 and known[client] else []
        assert helpers.tolist() == wanted + [-1] * (num_helpers - len(wanted))


def test_the_random_input_is_one_image():
    """Of bytes that are normal with mean and deviation 125, cut to 0..255, then divided by 255."""
    x = random_input((64, 64, 3))
    assert_same(x, random_input((64, 64, 3)))
    assert random_input((2,)).shape == (1, 2)
    assert 0 <= x.min() < 0.001
    assert 0.999 < x.max() <= 1
    bytes_of = truncnorm((0 - 125) / 125, (255 - 125) / 125, loc=125, scale=125)
    assert kstest(255 * np.asarray(x).ravel(), bytes_of.cdf).pvalue > 0.01


@pytest.mark.parametrize("has_tables", [False, True])
@pytest.mark.parametrize(
    ("interval", "round_number", "is_sent"), [(1, 0, True), (2, 0, False), (2, 1, True)]
)
def test_the_server_sends_the_psi_it_saw(interval, round_number, is_sent, has_tables):
    """Clients 0 and 2 are nearest to client 1; nobody saw client 3."""
    parameters = jax.tree.map(jnp.ones_like, mlp((4,), 3, hidden=()).init(KEY))
    stacked = jax.tree.map(
        lambda leaf: leaf * jnp.arange(4.0).reshape(-1, *[1] * (leaf.ndim - 1)),
        stacked_for(4, parameters),
    )
    outputs = jnp.array([[0.0], [1.0], [5.0], [9.0]])
    seen = Seen(stacked, outputs, jnp.array([True, True, True, False]))
    if has_tables:
        unseen = jax.tree.map(lambda leaf: np.zeros_like(leaf[0]), seen)
        tables = jax.tree.map(lambda leaf: RowTable(4, leaf), unseen)
        seen = scatter(tables, np.arange(3), jax.tree.map(lambda leaf: leaf[:3], seen))
    federation = federation_of([3, 3, 3, 3])
    state = fedavg(training=training_of(Batches("paired", 4, 2))).init(KEY, federation)
    state = state._replace(clients=seen, round=jnp.int32(round_number))
    communication = Communication()
    helpers = helper_sender(1, interval)(state, federation.cohort([1, 2, 3]), communication)
    np.testing.assert_array_equal(helpers.is_there, [[is_sent], [is_sent], [False]])
    # Client 0's psi, all zeros, is sent for nothing; client 1's has 15 float32.
    assert communication.download == ({"helpers": 15 * 4} if is_sent else {})
    if is_sent:
        kernel = helpers.psi["head"]["kernel"][...][:2, 0]
        np.testing.assert_array_equal(kernel[0], np.zeros((4, 3)))
        np.testing.assert_array_equal(kernel[1], np.ones((4, 3)))
