"""What an upload shows: the model of a round in which its client is alone; the mean; gradients."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from float64_training import cross_entropy, gradient, logits, softmax, weights_of
from shown_methods import shown
from small_training import KEY, RATE, federation_of, training_of

from jaxfed.algorithms.dp_fedavg import dp_fedavg
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.audit.views import ANYBODY, SERVER
from jaxfed.federation.cohort import padded
from jaxfed.training.local.batches import Batches
from jaxfed.training.round.round import server_optimizer

FEDERATION = federation_of([10, 7, 5], num_labeled=5)
X, Y = FEDERATION.x[FEDERATION.test], FEDERATION.y[FEDERATION.test]
BATCHES = Batches("joint", 4, 2)
METHODS = {
    "fedavg": lambda: shown(fedavg, training=training_of(BATCHES, batch_norm=True)),
    "protofssl": lambda: shown(
        protofssl, training=training_of(BATCHES), task=PrototypeTask(3), unlabeled_query=3
    ),
}


@cache
def made(name):
    """A method, compiled once for several tests."""
    return METHODS[name]()


def cohort_of(clients):
    """Of one shape, so that a method is compiled once."""
    return padded(FEDERATION.cohort(clients), 3)


def played(algorithm, clients, rounds=2):
    """The states before and after the last round, its cohort and key; all clients in those before."""
    state = algorithm.init(KEY, FEDERATION)
    for number in range(1, rounds):
        key = jax.random.fold_in(KEY, number)
        state, _ = algorithm.round(state, FEDERATION.cohort(), key)
    cohort, key = cohort_of(clients), jax.random.fold_in(KEY, rounds)
    return state, algorithm.round(state, cohort, key)[0], cohort, key


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sample(1)
def test_an_upload_is_the_round_of_its_client_alone(name):
    algorithm = made(name)
    before, after, cohort, key = played(algorithm, [2, 0])
    own, mean = algorithm.views(before, after, cohort, key)
    assert own.client.tolist() == [0, 2]
    assert mean.client.tolist() == [-1]
    for client, answers in zip(own.client.tolist(), own.answers(X), strict=True):
        alone, _ = algorithm.round(before, cohort_of([client]), key)
        np.testing.assert_allclose(answers, algorithm.predict(alone, X), atol=2e-5)
    np.testing.assert_allclose(mean.answers(X)[0], algorithm.predict(after, X), atol=1e-6)
    assert not np.allclose(own.answers(X)[0], own.answers(X)[1], atol=1e-3)


def test_the_servers_optimizer_changes_no_upload():
    step = server_optimizer(optax.sgd(0.1))
    other = shown(fedavg, training=training_of(BATCHES, batch_norm=True, aggregate=step))
    seen = [
        algorithm.views(*played(algorithm, None, rounds=1)) for algorithm in (made("fedavg"), other)
    ]
    np.testing.assert_array_equal(seen[0][0].answers(X), seen[1][0].answers(X))
    assert not np.allclose(seen[0][1].answers(X), seen[1][1].answers(X))


def test_the_server_sees_changes_before_its_noise():
    """DP-FedAvg of clients: uploads are FedAvg's, the mean that all others see is not."""
    whole = Batches("joint", 5, 1)  # one step on all labels of a client
    noisy = shown(dp_fedavg, training=training_of(whole), noise_multiplier=5.0)
    before, after, cohort, key = played(noisy, None, rounds=1)
    uploads, mean = noisy.views(before, after, cohort, key)
    assert [uploads.adversary, mean.adversary] == [SERVER, ANYBODY]
    w = weights_of(before.model)
    for client, answers in zip(range(3), uploads.answers(X), strict=True):
        own = FEDERATION.partition.labeled[client]
        x, y = FEDERATION.x[own].astype(np.float64), FEDERATION.y[own]
        alone = w - RATE * gradient(lambda u, x=x, y=y: cross_entropy(u, x, y), w)
        np.testing.assert_allclose(answers, softmax(logits(alone, X)), atol=1e-5)
    np.testing.assert_allclose(mean.answers(X)[0], noisy.predict(after, X), atol=1e-6)
    # Without noise the mean is at most the bound, 1, away.
    assert np.linalg.norm(weights_of(after.model) - w) > 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["fedavg", "protofssl"])
def test_gradient_norms_are_of_all_numbers_of_the_message(name):
    algorithm = made(name)
    before, after, cohort, key = played(algorithm, None)
    mean = algorithm.views(before, after, cohort, key)[1]
    x, y = X[:23], Y[:23]  # more than are done at a time
    (norms,) = mean.gradient_norms(x, y)
    assert norms.shape == (23,)
    # Against differences: the loss along the gradient's direction is as steep as it is long.
    if name == "fedavg":
        model = training_of(BATCHES, batch_norm=True).model

        @jax.jit
        @jax.grad
        def slope(state, x, y):
            return optax.softmax_cross_entropy_with_integer_labels(
                model.apply(state, x[None])[0], y
            )

        for number in (0, 22):
            gradient = slope(after.model, jnp.asarray(x[number]), y[number])
            squares = sum(np.square(leaf).sum() for leaf in jax.tree.leaves(gradient))
            np.testing.assert_allclose(norms[number], np.sqrt(squares), rtol=1e-4)
    else:
        assert np.isfinite(norms).all()
        assert (norms > 0).all()
