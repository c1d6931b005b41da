"""(FL)^2 against its equations, in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import cross_entropy, gradient, log_softmax, logits, softmax, weights_of
from small_round_checks import check_rounds
from small_training import KEY, RATE, clients_and_server, double, training_of

from jaxfed.algorithms.fl2 import fl2, perturbation
from jaxfed.training.local.batches import Batches

SURE, RHO = 0.6, 0.7
WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has
IS_BIAS = np.repeat([False, True, False, True], [32, 8, 24, 3])  # of `small_training.Net`


def held_of(x):
    return [4 * x[:9], x[9:16], 0.2 * x[16:], x[:0]]


def training_with(federation, **changes):
    return training_of(
        WHOLE,
        strong_augment=double,
        server_examples=federation.server_examples,
        server_batches=WHOLE,
        **changes,
    )


def shifted(v, g):
    """v*: each weight's own step, longer for large weights."""
    size = np.where(IS_BIAS, 1, np.abs(v) + 0.01)
    length = np.sqrt(sum((a * b) ** 2 for a, b in zip(size, g, strict=True)))
    return v + (RHO * size**2 * g / length if length else 0)


def divergence(p, log_q):
    return (p * (np.log(p) - log_q)).sum(axis=1)


def client_by_hand(w, x, rate):
    """The trained model, tau_k, and the share of D; None with D empty."""
    x = x.astype(np.float64)
    p = softmax(logits(w, x))
    confidence, label = p.max(axis=1), p.argmax(axis=1)
    tau, share = confidence.mean(), p.mean(axis=0)
    chosen = [i for i in range(len(x)) if confidence[i] >= tau * share[label[i]] / share.max()]
    if not chosen:
        return None
    sure = [i for i in chosen if confidence[i] >= SURE]
    v = w
    for _ in range(WHOLE.epochs):
        slope = gradient(lambda u: cross_entropy(u, 2 * x[chosen], label[chosen]), v)
        if sure:
            g = gradient(lambda u: cross_entropy(u, 2 * x[sure], label[sure]), v)
            reference = softmax(logits(v, 2 * x[sure]))

            def sharpness(u, reference=reference):
                terms = divergence(reference, log_softmax(logits(u, 2 * x[sure])))
                return terms.sum() / len(chosen)

            slope = slope + gradient(sharpness, shifted(v, g))
        v = v - rate * slope
    return v, tau, len(chosen) / len(x), len(sure)


def test_two_rounds_are_the_equations(tmp_path):
    held, federation = clients_and_server(held_of)
    algorithm = fl2(training=training_with(federation), sure_threshold=SURE, rho=RHO)
    check_rounds(algorithm, federation, [None] * 3, tmp_path)
    state = algorithm.init(KEY, federation)
    w = weights_of(state.model)
    x, y = federation.server_examples
    for number in range(2):
        state, metrics = algorithm.round(
            state, federation.cohort(), jax.random.fold_in(KEY, number)
        )
        rate = RATE / (1 + number)
        for _ in range(WHOLE.epochs):
            w = w - rate * gradient(lambda u: cross_entropy(u, x.astype(np.float64), y), w)
        found = [client_by_hand(w, own, rate) for own in held if len(own)]
        models, taus, shares, sure = map(np.array, zip(*filter(None, found), strict=True))
        a = (1 - taus) / np.sum(1 - taus)
        w = a @ models
        np.testing.assert_allclose(weights_of(state.model), w, rtol=2e-4, atol=2e-5)
        assert float(metrics["sure"]) == pytest.approx(a @ shares, rel=1e-4)
        assert float(metrics["threshold"]) == pytest.approx(a @ taus, rel=1e-4)
        sent = metrics["communication"]["upload"]
        assert sent == {"parameters": len(a) * 4 * len(w), "thresholds": len(a) * 4}
        assert np.ptp(a) > 0.05
        assert min(shares) < 1
        assert 0 in sure or number
        assert max(sure) > 0


@pytest.mark.slow
def test_clients_that_are_sure_of_everything_have_a_mean():
    """1 - tau is 0 for all of them; none is left out, and numbers stay finite."""
    _, federation = clients_and_server(held_of)
    training = training_with(federation)
    saturated = jax.tree.map(lambda leaf: 1e4 * leaf, training.model.init(KEY))
    algorithm = fl2(training=dataclasses.replace(training, initial_model=saturated))
    state = algorithm.init(KEY, federation)
    state, metrics = algorithm.round(state, federation.cohort(), KEY)
    assert float(metrics["threshold"]) == pytest.approx(1, abs=1e-6)
    assert metrics["clients"] == 3
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.model))


def test_a_vanishing_gradient_perturbs_nothing():
    """Its square is 0 in float32; divided by that the step would be endless."""
    model = training_of(WHOLE).model
    parameters = model.init(KEY)
    for size in (0.0, 1e-25):
        g = jax.tree.map(lambda leaf, size=size: jnp.full_like(leaf, size), parameters)
        found = perturbation(parameters, g, 0.1)
        assert max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(found)) < 1e-6
