"""FedDure against its equations: a local model and two regulators, of which one model travels."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from float64_training import gradient, log_softmax, logits, softmax, weights_of
from small_training import KEY, RATE, double, federation_of, rounds_of, shifted, training_of

from jaxfed.algorithms.feddure import Regulators, feddure, regulated, weigher
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.losses import Batch, softmax_cross_entropy

WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has: no randomness
SIZES, LABELED, COHORTS = [14, 9, 12], 4, [[0, 1], [1, 2]]
TAU, WEIGHT, COARSE, FINE = 0.45, 1.3, 0.7, 0.02


def entries(state):
    """F-reg of each client, or of one, as a vector."""
    leaves = [np.asarray(leaf, np.float64) for leaf in state]
    one = leaves[-1].ndim
    return np.concatenate([leaf.reshape(*leaf.shape[:one], -1) for leaf in leaves], axis=-1)


def judged(omega, p):
    """m of one prediction."""
    kernel, bias, last, last_bias = np.split(omega, [300, 400, 500])
    hidden = p @ kernel.reshape(3, 100) + bias
    z = sum(np.where(hidden.real > 0, hidden, 0) * last) + last_bias[0]
    return 1 / (1 + np.exp(-z))


def adam(slope, moments, number):
    """Adam's step number 1, 2, ... and its moments."""
    first, second = moments
    first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
    ahead = first / (1 - 0.9**number), second / (1 - 0.999**number)
    return FINE * ahead[0] / (np.sqrt(ahead[1]) + 1e-8), (first, second)


def trained(w, omega, x, y, rate, seen):
    """A client's round: its local model and F-reg."""
    n, unlabeled = len(y), range(len(y), len(x))
    theta, phi, moments, coarse_rate = w, w, (0, 0), COARSE * rate

    def labeled(v):
        return -sum(log_softmax(logits(v, x + 0.5))[i, y[i]] for i in range(n)) / n

    for number in range(1, WHOLE.epochs + 1):
        p = softmax(logits(theta, x + 0.5))
        label = p.argmax(axis=1)

        def each(v, i, view, label=label):
            return -log_softmax(logits(v, view))[i, label[i]]

        slopes = {i: gradient(lambda v, i=i: each(v, i, x + 0.5), phi) for i in unlabeled}

        def step(omega, p=p, phi=phi, slopes=slopes):
            total = sum(judged(omega, p[i]) * slopes[i] for i in unlabeled)
            return phi - coarse_rate * total / len(unlabeled)

        uphill = gradient(labeled, step(omega))
        by_weight = {i: -coarse_rate * uphill @ slopes[i] / len(unlabeled) for i in unlabeled}
        slope = gradient(
            lambda net, p=p, c=by_weight: sum(c[i] * judged(net, p[i]) for i in unlabeled), omega
        )
        change, moments = adam(slope, moments, number)
        omega = omega - change
        before, phi = labeled(phi), step(omega)
        gain = before - labeled(phi)
        share = {}
        for i in unlabeled:
            is_sure = p[i].max() >= TAU
            seen[bool(is_sure)] += 1
            share[i] = WEIGHT * is_sure * judged(omega, p[i]) + gain
        seen["helped" if gain > 0 else "harmed"] += 1

        def loss(v, share=share, each=each):
            return labeled(v) + sum(share[i] * each(v, i, 2 * x) for i in unlabeled) / len(
                unlabeled
            )

        theta = theta - rate * gradient(loss, theta)
    return theta, omega


def test_two_rounds_are_the_equations():
    federation = federation_of(SIZES, num_labeled=LABELED)
    algorithm = feddure(
        training=training_of(WHOLE, augment=shifted, strong_augment=double),
        threshold=TAU,
        unlabeled_weight=WEIGHT,
        regulator_rate=COARSE,
        weigher_rate=FINE,
    )
    states = rounds_of(algorithm, federation, 2, COHORTS)
    w, nets = weights_of(states[0].model), entries(states[0].clients)
    assert (nets == nets[0]).all()
    seen = dict.fromkeys((True, False, "helped", "harmed"), 0)
    for number, cohort in enumerate(COHORTS):
        ends = []
        for client in cohort:
            points = federation.points(client)
            x, y = federation.x[points].astype(np.float64), federation.y[points][:LABELED]
            end, nets[client] = trained(w, nets[client], x, y, RATE / (1 + number), seen)
            ends.append(end)
        w = np.average(ends, axis=0, weights=[SIZES[client] for client in cohort])
        state = states[number + 1]
        np.testing.assert_allclose(weights_of(state.model), w, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(entries(state.clients), nets, rtol=2e-3, atol=2e-4)
    assert min(seen.values()) > 0


@pytest.mark.slow
def test_kept_optimizers_statistics_and_clients_without_labels():
    federation = federation_of([6, 5, 0], num_labeled=3)
    training = training_of(
        WHOLE,
        strong_augment=double,
        batch_norm=True,
        client_optimizer="kept",
        optimizer=lambda rate: optax.sgd(rate, momentum=0.9),
    )
    algorithm = feddure(training=training, weigher_rate=0.1)
    start = algorithm.init(KEY, federation)
    other = algorithm.init(jax.random.key(1), federation)
    assert np.abs(entries(other.clients) - entries(start.clients)).min(axis=1).max() > 0
    cohort = federation.cohort()
    y = np.where(np.arange(3)[:, None] == 1, -1, cohort.y)  # client 1 has no labels
    state, metrics = algorithm.round(start, cohort._replace(y=y), KEY)
    mean = state.model["norm"]["mean"][...]
    assert np.abs(mean - start.model["norm"]["mean"][...]).max() > 0
    moved = np.abs(entries(state.clients) - entries(start.clients)).max(axis=1)
    assert moved[0] > 0.05
    assert moved[1] == moved[2] == 0
    assert metrics["communication"]["upload"].keys() == {"parameters", "statistics"}
    for leaf in jax.tree.leaves(state):
        assert np.isfinite(leaf).all()
    assert any(np.any(leaf) for leaf in jax.tree.leaves(state.client_optimizers))


def test_statistics_of_the_coarse_regulator_move():
    model = training_of(WHOLE, batch_norm=True).model
    state, net, rows = model.init(KEY), weigher(KEY, 3), jnp.arange(6)
    x = jax.random.normal(KEY, (6, 4)) + 1
    batch = Batch(x, rows % 3, jnp.ones(6), rows >= 0, rows < 3)
    start = Regulators(state, net, optax.adam(0.0).init(net))
    seen, rates = (x, jnp.full((6, 3), 1 / 3), batch, KEY), (jnp.float32(0.1), 0.01)
    after = jax.jit(lambda: regulated(model, start, *seen, rates, softmax_cross_entropy)[0])()
    _, moved = model.train_apply(state, x, KEY)
    for name in ("mean", "var"):
        np.testing.assert_allclose(
            after.coarse["norm"][name][...], moved["norm"][name][...], rtol=1e-5
        )
