"""FedCon against its equations: the server's and the clients' networks with moving averages, in NumPy."""

import sys

import jax
import numpy as np
import optax
import pytest
from float64_training import (
    cross_entropy,
    features,
    gradient,
    log_softmax,
    logits,
    softmax,
    weights_of,
)
from small_training import KEY, RATE, clients_and_server, shifted, training_of

from jaxfed.algorithms.fedcon import contrast_loss, fedcon, server_loss
from jaxfed.models.mlp import mlp
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.local.losses import Batch
from jaxfed.training.server_state import together

WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has: no randomness
WEIGHT, RAMP, SERVER_AVERAGE, AVERAGE, HIDDEN = 1.4, 3, 0.7, 0.6, 5
BODY = 40  # first of a network's 67 numbers
SHAPES = ((8, HIDDEN), (HIDDEN,), (HIDDEN, 8), (8,))


def moved(key, x):
    return x + jax.random.uniform(key)


def held_of(x):
    return [x[:8], x[8:14], x[14:19], x[:0]]


def algorithm_of(federation, averages=(SERVER_AVERAGE, AVERAGE), **changes):
    training = training_of(
        WHOLE,
        augment=shifted,
        server_examples=federation.server_examples,
        server_batches=WHOLE,
        **changes,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[server_loss.__module__], "_PREDICTOR_HIDDEN", HIDDEN)
        return fedcon(
            training=training,
            consistency_weight=WEIGHT,
            rampup_rounds=RAMP,
            server_average=averages[0],
            average=averages[1],
        )


def predictors(state):
    """Each client's predictor, or one, as a vector."""
    layers = state["hidden"][0], state["head"]
    leaves = [np.asarray(layer[n][...], np.float64) for layer in layers for n in ("kernel", "bias")]
    return np.concatenate(
        [
            leaf.reshape(*leaf.shape[: leaf.ndim - len(shape)], -1)
            for leaf, shape in zip(leaves, SHAPES, strict=True)
        ],
        axis=-1,
    )


def guessed(h, z):
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
    kernel, bias, last, last_bias = (
        part.reshape(shape) for part, shape in zip(np.split(h, ends), SHAPES, strict=True)
    )
    hidden = z @ kernel + bias
    return np.where(hidden.real > 0, hidden, 0) @ last + last_bias


def cosines(a, b):
    return (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))


def by_server(w, average, first, second, y, weight):
    q_1, q_2 = softmax(logits(average, first)), softmax(logits(average, second))
    value = (cross_entropy(w, first, y) + cross_entropy(w, second, y)) / 2
    for q, view in ((q_2, first), (q_1, second)):
        log_p = log_softmax(logits(w, view))
        value += weight / 2 * (q * (np.log(q) - log_p)).sum(axis=1).mean()
    return value


def by_client(both, target, first, second):
    w, h = both[:67], both[67:]
    value = 0
    for view, other in ((first, second), (second, first)):
        near = cosines(guessed(h, features(w, view)), features(target, other))
        value += (1 - near).mean() / 2
    return value


def test_two_rounds_are_the_equations():
    held, federation = clients_and_server(held_of)
    algorithm = algorithm_of(federation)
    state = algorithm.init(KEY, federation)
    w = weights_of(state.model["online"])
    average, h = w, predictors(state.clients.predictor)
    assert (h == h[0]).all()
    targets = {}
    x, y = federation.server_examples
    x = x.astype(np.float64) + 0.5
    for number, cohort in enumerate([[0, 1, 3], [1, 2, 3]]):
        rate, weight = RATE / (1 + number), WEIGHT * np.exp(-5 * (1 - number / RAMP) ** 2)
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, federation.cohort(cohort), key)
        for _ in range(WHOLE.epochs):
            slope = gradient(lambda u, s=average, b=weight: by_server(u, s, x, x, y, b), w)
            w = w - rate * slope
            average = SERVER_AVERAGE * average + (1 - SERVER_AVERAGE) * w
        np.testing.assert_allclose(weights_of(state.memory["online"]), w, rtol=2e-4, atol=2e-5)
        bodies = []
        for client in cohort[:2]:
            own = held[client].astype(np.float64) + 0.5
            both, target = np.concatenate([w, h[client]]), targets.get(client, w)
            for _ in range(WHOLE.epochs):
                slope = gradient(lambda u, t=target, own=own: by_client(u, t, own, own), both)
                both = both - rate * slope
                target = AVERAGE * target + (1 - AVERAGE) * both[:67]
            bodies.append(both[:BODY])
            h[client], targets[client] = both[67:], target
        body = np.mean(bodies, axis=0)
        served, w = w, np.concatenate([body, w[BODY:]])
        np.testing.assert_allclose(weights_of(state.model["online"]), w, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(weights_of(state.model["target"]), average, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(predictors(state.clients.predictor), h, rtol=2e-4, atol=2e-5)
        kept = weights_of(state.clients.target)
        for client, target in targets.items():
            np.testing.assert_allclose(kept[client], target, rtol=2e-4, atol=2e-5)
        for way in ("upload", "download"):
            assert metrics["communication"][way]["parameters"] == 3 * 4 * BODY
    points = federation.x[federation.test]
    np.testing.assert_allclose(
        algorithm.predict(state, points), softmax(logits(served, points)), rtol=1e-3, atol=1e-4
    )


def test_each_view_learns_from_the_other():
    model, predictor = training_of(WHOLE).model, mlp((8,), 8, hidden=(HIDDEN,))
    network, other = model.init(KEY), model.init(jax.random.key(1))
    own = predictor.init(KEY)
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    y, used = np.array([0, 1, 2, 0, 1], np.int32), np.array([True, True, False, True, True])
    batch = Batch(x, y, used.astype(np.float32), used, used)
    keys = jax.random.split(jax.random.split(KEY, 3)[0])
    views = [np.asarray(moved(key, x), np.float64)[used] for key in keys]
    w, v = weights_of(network), weights_of(other)
    loss = server_loss(model, LocalTraining(augment=moved), 0.8)
    value, _ = jax.jit(loss)(together(online=network, target=other), network, batch, KEY)
    np.testing.assert_allclose(value, by_server(w, v, *views, y[used], 0.8), rtol=1e-5)
    keys = jax.random.split(jax.random.split(KEY, 4)[0])
    views = [np.asarray(moved(key, x), np.float64)[used] for key in keys]
    state = together(online=together(network=network, predictor=own), target=other)
    value, _ = jax.jit(contrast_loss(model, predictor, moved))(state, network, batch, KEY)
    expected = by_client(np.concatenate([w, predictors(own)]), v, *views)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_bodies_and_their_statistics_are_sent_and_decay_is_the_networks_own():
    """A round with BatchNorm, weight decay and averages that never move."""
    _, federation = clients_and_server(held_of)
    algorithm = algorithm_of(
        federation,
        averages=(1.0, 1.0),
        batch_norm=True,
        optimizer=lambda rate: optax.chain(optax.add_decayed_weights(0.5), optax.sgd(rate)),
    )
    start, other = (algorithm.init(key, federation) for key in (KEY, jax.random.key(1)))
    first, second = (predictors(one.clients.predictor) for one in (start, other))
    assert np.abs(first - second).max() > 0.1
    state, metrics = algorithm.round(start, federation.cohort(), KEY)
    sent = metrics["communication"]["upload"]
    assert sent == {"parameters": 4 * 4 * (BODY + 16), "statistics": 4 * 4 * 16}
    for name in ("mean", "var"):  # the clients' too, after the server's
        served, after = (one["online"]["norm"][name][...] for one in (state.memory, state.model))
        assert np.abs(served - start.model["online"]["norm"][name][...]).max() > 0
        assert np.abs(after - served).max() > 0
    for leaf in jax.tree.leaves(state):
        assert np.isfinite(leaf).all()
    found, served = weights_of(state.model["online"]), weights_of(state.memory["online"])
    np.testing.assert_array_equal(
        weights_of(state.model["target"]), weights_of(start.model["target"])
    )
    np.testing.assert_array_equal(weights_of(state.clients.target)[0], served)
    np.testing.assert_array_equal(found[BODY:], served[BODY:])
    assert np.abs(found[:BODY] - served[:BODY]).max() > 0.01
