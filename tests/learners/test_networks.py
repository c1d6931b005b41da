"""Networks as learners: steps by optax, what stays with a client, what changes nothing, who has no vote."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from float64_training import cross_entropy, gradient, weights_of
from small_training import KEY, RATE, federation_of, training_of

from jaxfed.learners.learner import PublicTargets
from jaxfed.learners.networks import network
from jaxfed.testing.method_checks import assert_equal
from jaxfed.training.local.batches import Batches

FEDERATION = federation_of([10, 7, 5])
BATCH = Batches("joint", 16, 1)  # all labels of a client: the order of an epoch does not matter
SMALL = Batches("joint", 4, 1)
MOMENTUM = partial(optax.sgd, momentum=0.9)
CONSTANT = optax.constant_schedule(RATE)
U = FEDERATION.x[FEDERATION.test]


@functools.cache  # a learner's programs are its own
def learner(
    batches=BATCH,
    *,
    strategy="map",
    batch_norm=False,
    initial_model=None,
    learning_rate=lambda count: RATE / (1 + count),
    **changes,
):
    own = {
        "optimizer": MOMENTUM,
        "initial_model": initial_model,
        "learning_rate": learning_rate,
    }
    training = training_of(batches, strategy=strategy, batch_norm=batch_norm, **own)
    return network(training=training, **{"public_batch_size": 8, "pseudo_weight": 0.7, **changes})


def public_targets(rows=None, seed=0):
    """Labels of all public examples, or of those in `rows` alone."""
    rng = np.random.default_rng(seed)
    label = rng.integers(3, size=len(U)).astype(np.int32)
    if rows is not None:
        label[np.setdiff1d(np.arange(len(U)), rows)] = -1
    return PublicTargets(U, label, np.full(len(U), 0.5, np.float32), None)


def fitted(made, num_fits=2, cohort=None, taught=None, steps=3, state=None, first=0):
    if state is None:
        state = made.init(KEY, FEDERATION)
    metrics = {}
    for number in range(first, first + num_fits):
        given = FEDERATION.cohort() if cohort is None else cohort
        key = jax.random.fold_in(KEY, number)
        state, failed, metrics = made.fit(state, given, taught, key, steps)
        assert not failed
    return state, metrics


def row(state, client):
    return jax.tree.map(lambda leaf: leaf[client], state)


def test_rounds_by_hand():
    """Two rounds of three steps; one public example alone has a label, so that it is drawn always."""
    made = learner()
    taught = public_targets(rows=[4])
    start = made.init(KEY, FEDERATION)
    state, metrics = fitted(made, taught=taught)
    public = U[4:5].astype(np.float64), taught.label[4:5]
    starts, ends, losses = weights_of(start.model), weights_of(state.model), []
    for client in range(3):
        points, w, velocity = FEDERATION.points(client), starts[client], 0
        own = FEDERATION.x[points].astype(np.float64), FEDERATION.y[points]

        def loss(v, own=own):
            return cross_entropy(v, *own) + 0.7 * cross_entropy(v, *public)

        for number in range(2):
            values = []
            for _ in range(3):
                values.append(loss(w))
                velocity = 0.9 * velocity + gradient(loss, w)
                w = w - RATE / (1 + number) * velocity
        np.testing.assert_allclose(ends[client], w, rtol=2e-4, atol=2e-5)
        losses.append(np.mean(values))
    assert metrics == {"train_loss": pytest.approx(np.mean(losses), rel=1e-4), "clients": 3}
    np.testing.assert_array_equal(state.steps, [6, 6, 6])
    np.testing.assert_array_equal(state.fits, [2, 2, 2])


def test_two_rounds_are_one_of_twice_the_steps():
    """At one rate, with a kept optimizer: batches go on, each client's in an order of its own."""
    made = learner(SMALL, batch_norm=True, learning_rate=CONSTANT)
    once, _ = fitted(made, num_fits=1, steps=6)
    twice, _ = fitted(made, num_fits=2, steps=3)
    assert_equal((once.model, once.optimizer), (twice.model, twice.optimizer))
    assert len({*map(tuple, jax.random.key_data(once.order).tolist())}) == 3


def test_all_may_start_from_one_network():
    given = training_of(BATCH).model.init(jax.random.key(8))
    made = learner.__wrapped__(initial_model=given)
    start = made.init(KEY, FEDERATION)
    for client in range(3):
        assert_equal(row(start.model, client), given)
    assert (made.predict(start, np.arange(3), U) >= 0).all()
    nobody = FEDERATION.cohort()._replace(y=np.full_like(FEDERATION.cohort().y, -1))
    state, _ = fitted(made, 1, cohort=nobody, taught=public_targets())
    kernels = state.model["first"]["kernel"][...]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3  # each draws its own public batches


def test_a_spoiled_network_fails_and_the_others_go_on():
    made = learner(SMALL, batch_norm=True, learning_rate=CONSTANT)
    cohort = FEDERATION.cohort()
    cohort.x[2, :5] = np.inf
    start, _ = fitted(made, num_fits=1)
    state, failed, metrics = made.fit(start, cohort, None, KEY, 3)
    assert failed == {2: "parameters that are nan or infinite after 3 steps"}
    assert_equal(row(state, 2), row(start, 2))
    assert metrics["clients"] == 2
    assert np.isfinite(metrics["train_loss"])
    assert int(state.steps[0]) == 6


def test_without_labels_public_ones_are_learned_and_without_both_there_is_no_vote():
    made = learner(SMALL, batch_norm=True, learning_rate=CONSTANT)
    cohort = FEDERATION.cohort()
    cohort.y[1] = -1
    state, metrics = fitted(made, 1, cohort=cohort)
    assert metrics["clients"] == 2
    vote = made.predict(state, np.arange(3), U)
    assert (vote[1] == -1).all()
    assert (vote[[0, 2]] >= 0).all()
    assert not made.predict_proba(state, np.array([1]), U).any()
    state, metrics = fitted(made, 1, cohort=cohort, taught=public_targets())
    assert metrics["clients"] == 3
    assert (made.predict(state, np.array([1]), U) >= 0).all()


def test_predictions_are_the_networks_in_evaluation_mode():
    made = learner(SMALL, batch_norm=True, learning_rate=CONSTANT)
    state, _ = fitted(made)
    apply = jax.jit(training_of(SMALL, batch_norm=True).model.apply)
    x = np.resize(U, (501, 4))
    logits = np.stack([apply(row(state.model, client), x) for client in (2, 0)])
    ids = np.array([2, 0], np.int32)
    vote = made.predict(state, ids, jnp.asarray(x))
    assert vote.dtype == np.int32
    np.testing.assert_array_equal(vote, logits.argmax(axis=-1))
    np.testing.assert_allclose(made.scores(state, ids, x), logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        made.predict_proba(state, ids, x), jax.nn.softmax(logits), rtol=1e-4, atol=1e-6
    )
    assert made.predict(state, ids, x[:0]).shape == (2, 0)
