"""FedMatch: the two losses and their gradients by formula, votes and helpers by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_training import (
    KEY,
    assert_close,
    assert_same,
    federation_of,
    rounds_of,
    training_of,
)

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fedmatch import (
    Helpers,
    Seen,
    Weights,
    agreed_label,
    composed,
    decomposed,
    decomposed_loss,
    fedmatch,
    helper_sender,
    mean_divergence,
    nearest_clients,
    random_input,
)
from jaxfed.communication import Communication
from jaxfed.errors import UsageError
from jaxfed.local_update import Batches
from jaxfed.losses import Batch, softmax_cross_entropy
from jaxfed.models.mlp import mlp
from jaxfed.server_state import stacked_for, together

pytestmark = pytest.mark.usefixtures("shared_programs")

LINEAR = mlp((4,), 3, hidden=())


def double(key, x):
    return 2 * x


def batch_of(x):
    """Two labeled rows, three unlabeled, one that only fills the batch."""
    return Batch(
        x=jnp.asarray(x, jnp.float32),
        label=jnp.array([0, 2, 0, 0, 0, 1]),
        weight=jnp.array([1.0, 1, 0, 0, 0, 0]),
        used=jnp.array([True] * 5 + [False]),
        is_labeled=jnp.array([True, True, False, False, False, True]),
    )


def log_softmax(z):
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def affine(*states):
    """Kernel and bias of the sum of linear models, float64."""
    return tuple(
        sum(np.asarray(state["head"][name][...], np.float64) for state in states)
        for name in ("kernel", "bias")
    )


def test_the_two_losses_and_the_gradient_of_each_part():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 4))
    sigma, psi, one, two = (LINEAR.init(jax.random.key(i)) for i in range(4))
    helpers = Helpers(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), one, two), jnp.array([True, False])
    )
    weights = Weights(supervised=2.0, consistency=0.5, l2=0.3, l1=0.7, confidence=0.5)
    loss = decomposed_loss(
        LINEAR, helpers, weights, weak=None, strong=double, pointwise=softmax_cross_entropy
    )
    anchor = together(sigma=LINEAR.init(jax.random.key(9)), psi=psi)
    state = together(sigma=sigma, psi=psi)
    (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(state, anchor, batch_of(x), KEY)

    kernel, bias = affine(sigma, psi)
    log_p = log_softmax(x @ kernel + bias)
    strong_log_p = log_softmax(2 * x @ kernel + bias)
    helper_kernel, helper_bias = affine(anchor["sigma"], one)
    helped = log_softmax(x @ helper_kernel + helper_bias)
    sure = [i for i in (2, 3, 4) if np.exp(log_p[i]).max() >= 0.5]
    assert 0 < len(sure) < 3
    supervised = -(log_p[0, 0] + log_p[1, 2]) / 2
    unsupervised = []
    for i in sure:
        votes = np.bincount([log_p[i].argmax(), helped[i].argmax()], minlength=3)
        divergence = np.sum(np.exp(helped[i]) * (helped[i] - log_p[i]))
        unsupervised.append(divergence - strong_log_p[i, votes.argmax()])
    leaves = list(zip(affine(sigma), affine(psi), strict=True))
    squares = sum(np.sum((a - b) ** 2) for a, b in leaves)
    sizes = sum(np.abs(b).sum() for _, b in leaves)
    expected = 2 * supervised + 0.5 * np.mean(unsupervised) + 0.3 * squares + 0.7 * sizes
    assert float(value) == pytest.approx(expected, rel=1e-5)

    # sigma: of the labeled rows alone; psi: of everything else.
    residual = np.exp(log_p[:2]) - np.eye(3)[[0, 2]]
    np.testing.assert_allclose(
        gradient["sigma"]["head"]["kernel"][...], 2 * x[:2].T @ residual / 2, rtol=1e-4, atol=1e-5
    )
    step = np.zeros((4, 3))
    for i in sure:
        votes = np.bincount([log_p[i].argmax(), helped[i].argmax()], minlength=3)
        step += np.outer(x[i], np.exp(log_p[i]) - np.exp(helped[i]))
        step += np.outer(2 * x[i], np.exp(strong_log_p[i]) - np.eye(3)[votes.argmax()])
    a, b = leaves[0]
    expected = 0.5 * step / len(sure) + 0.3 * 2 * (b - a) + 0.7 * np.sign(b)
    np.testing.assert_allclose(
        gradient["psi"]["head"]["kernel"][...], expected, rtol=1e-4, atol=1e-5
    )


def test_votes_and_divergence_by_hand():
    own = jnp.log(jnp.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]]))
    first = jnp.log(jnp.array([[0.1, 0.6, 0.3], [0.6, 0.2, 0.2]]))
    second = jnp.log(jnp.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]))
    helped = jnp.stack([first, second])
    votes = {(True, True): [1, 0], (True, False): [0, 0], (False, False): [0, 1]}
    for there, expected in votes.items():
        np.testing.assert_array_equal(agreed_label(own, helped, jnp.array(there)), expected)

    def kl(p, q):
        return np.sum(np.exp(p) * (p - q), axis=-1)

    own, first, second = map(np.asarray, (own, first, second))
    for there, expected in (
        ((True, True), (kl(first, own) + kl(second, own)) / 2),
        ((False, True), kl(second, own)),
        ((False, False), np.zeros(2)),
    ):
        value = mean_divergence(helped, jnp.asarray(own), jnp.array(there))
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)


@given(st.integers(0, 2**31 - 1), st.integers(1, 6), st.integers(1, 3))
def test_helpers_are_the_nearest_others(seed, num_clients, num_helpers):
    rng = np.random.default_rng(seed)
    outputs, known = rng.random((num_clients, 3)), rng.random(num_clients) < 0.7
    client_id = np.append(rng.permutation(num_clients), -1).astype(np.int32)
    found = nearest_clients(outputs, known, client_id, num_helpers)
    for client, helpers in zip(client_id, found, strict=True):
        others = [k for k in np.flatnonzero(known) if k != client]
        others.sort(key=lambda k, c=client: np.linalg.norm(outputs[k] - outputs[c]))
        wanted = others[:num_helpers] if client >= 0 and known[client] else []
        assert helpers.tolist() == wanted + [-1] * (num_helpers - len(wanted))


SMALL = Batches("paired", 4, 2)
FREE = {"consistency_weight": 0.0, "l2_weight": 0.0, "l1_weight": 0.0}


def test_without_psi_it_is_fedavg():
    federation = federation_of([12, 7, 20])
    training = training_of(SMALL, strong_augment=double)
    plain = rounds_of(fedavg(training=training), federation, 3)[-1]
    match = fedmatch(training=training, supervised_weight=1.0, psi_scale=0.0, **FREE)
    assert_close(composed(rounds_of(match, federation, 3)[-1].model), plain.model)


def test_who_gets_helpers_and_what_that_costs():
    federation = federation_of([10, 10, 10, 10], 4)
    training = training_of(SMALL, strong_augment=double, batch_norm=True)
    algorithm = fedmatch(training=training, l2_weight=0.1, supervised_weight=1.0, helper_interval=2)
    state, helped = algorithm.init(KEY, federation), []
    assert_same(
        state.model["psi"]["first"], jax.tree.map(lambda w: 0.2 * w, state.model["sigma"]["first"])
    )
    size = 4 * (4 * 8 + 8 + 2 * 8 + 8 * 3 + 3)
    for number, cohort in enumerate([[0, 1], [0, 2], [1, 2], [0, 3]]):
        state, metrics = algorithm.round(
            state, federation.cohort(cohort), jax.random.fold_in(KEY, number)
        )
        assert metrics["communication"]["upload"]["parameters"] == 2 * 2 * size
        helped.append(metrics["communication"]["download"].get("helpers", 0) / size)
    # Round 2: client 0 knows 1 only; round 4: client 0 has two, client 3 was not seen.
    assert helped == [0, 1, 0, 2]
    seen = state.clients
    assert seen.is_known.all()
    np.testing.assert_allclose(seen.outputs.sum(axis=1), 1, rtol=1e-5)


def test_small_entries_are_dropped_where_asked():
    federation = federation_of([12, 7], 4)
    training = training_of(SMALL, strong_augment=double)
    states = rounds_of(
        fedmatch(training=training, supervised_weight=0.1, delta_threshold=0.01, **FREE),
        federation,
        1,
    )
    moved = jax.tree.map(lambda new, old: np.abs(new - old), states[1].model, states[0].model)
    assert any((leaf == 0).any() for leaf in jax.tree.leaves(moved))
    psi = jax.tree.map(lambda w: 0.1 * jnp.sign(w), LINEAR.init(KEY))
    state = together(sigma=LINEAR.init(KEY), psi=psi)
    x = jnp.ones((1, 4))
    for threshold, kept in ((0.05, 1.0), (0.5, 0.0)):
        model = decomposed(LINEAR, 0.2, threshold)
        kernel, bias = affine(state["sigma"], jax.tree.map(lambda w, k=kept: k * w, psi))
        np.testing.assert_allclose(
            model.apply(state, x), np.ones((1, 4)) @ kernel + bias, rtol=1e-5
        )


def test_the_server_sends_the_psi_it_saw():
    parameters = LINEAR.init(KEY)
    stacked = jax.tree.map(
        lambda leaf: leaf * jnp.arange(1.0, 5).reshape(-1, *[1] * (leaf.ndim - 1)),
        stacked_for(4, parameters),
    )
    outputs = jnp.array([[0.0], [1.0], [5.0], [9.0]])
    seen = Seen(stacked, outputs, jnp.array([True, True, True, False]))
    federation = federation_of([3, 3, 3, 3])
    state = fedavg(training=training_of(SMALL)).init(KEY, federation)._replace(clients=seen)
    communication = Communication()
    helpers = helper_sender(1, 1)(state, federation.cohort([1, 2, 3]), communication)
    np.testing.assert_array_equal(helpers.is_there, [[True], [True], [False]])
    kernel = np.asarray(parameters["head"]["kernel"][...])
    np.testing.assert_allclose(helpers.psi["head"]["kernel"][...][:2, 0], [1 * kernel, 2 * kernel])


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"num_helpers": 0}, "fedmatch.num_helpers=0"),
        ({"l2_weight": -1.0}, "fedmatch.l2_weight=-1"),
        ({}, "training.strong_augmentation"),
    ],
)
def test_mistakes_are_named(keywords, told):
    training = training_of(SMALL, strong_augment=double if keywords else None)
    with pytest.raises(UsageError, match=told):
        fedmatch(training=training, **keywords)


def test_the_random_input_is_one_and_within_two_deviations():
    x = random_input((8, 8, 1))
    assert_same(x, random_input((8, 8, 1)))
    assert np.abs(np.asarray(x) - 125 / 255).max() <= 2 * 125 / 255 + 1e-6
    assert random_input((2,)).shape == (1, 2)
