"""DS-FL against its equations: whole rounds in NumPy, sums under masks, and what it refuses."""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import numpy as np
from float64_training import cross_entropy, gradient, logits, softmax, the_one_that_fits, weights_of
from shown_methods import shown
from small_training import KEY, RATE, federation_of, training_of
from toy_learner import toy

from jaxfed.algorithms.dsfl import dsfl, sharpened_by_softmax
from jaxfed.learners import network
from jaxfed.training.local.batches import Batches

WHOLE = Batches("joint", 64, 1)  # every batch is all that a client has: no randomness
HEAT, STEPS, DISTILL = 0.2, 2, 3


def federation_with(num_public):
    federation = federation_of([6, 5, 7], num_labeled=4)
    return replace(federation, public=federation.validation[:num_public])


def made(federation, **keywords):
    networks = partial(network, training=training_of(WHOLE), public_batch_size=4)
    steps = {"steps": STEPS, "distill_steps": DISTILL, "temperature": HEAT}
    public = {"public": federation.public_examples, "num_classes": 3}
    return shown(dsfl, **({"network": networks} | steps | public | keywords))


def descended(v, x, y, rate, steps):
    for _ in range(steps):
        v = v - rate * gradient(lambda u: cross_entropy(u, x, y), v)
    return v


def round_by_hand(federation, networks, fits, u):
    """Networks of clients 0 and 1 after a round on the public example u, and z(u)."""
    networks = dict(networks)
    for client in (0, 1):
        points = federation.partition.labeled[client]
        x, y = federation.x[points].astype(np.float64), federation.y[points]
        networks[client] = descended(networks[client], x, y, RATE / (1 + fits), STEPS)
    x = federation.public_examples[[u]].astype(np.float64)
    z = softmax(sum(softmax(logits(networks[client], x)) for client in (0, 1)) / 2 / HEAT)
    for client in (0, 1):
        networks[client] = descended(networks[client], x, z, RATE / (2 + fits), DISTILL)
    return networks, z


def test_two_rounds_are_the_equations():
    """A round has one public example, drawn out of two; client 2 takes no part."""
    federation = federation_with(2)
    algorithm = made(federation, subset=1)
    state = algorithm.init(KEY, federation)
    first = weights_of(state.learner.model)
    for number in range(2):
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, federation.cohort([1, 0]), key)
        assert metrics["communication"]["upload"] == {"votes": 2 * 3 * 4}
        assert metrics["communication"]["download"] == {"mean": 2 * (3 + 1) * 4}
        assert metrics["voters"] == state.weight.sum() + 1 == 2
        assert metrics["failed_clients"] == 0
        assert metrics["train_loss"] != metrics["distill_loss"]
    np.testing.assert_array_equal(state.turns, [2, 2, 0])
    candidates = []
    for drawn in product(range(2), repeat=2):
        networks = dict(enumerate(first))
        for number, u in enumerate(drawn):
            networks, z = round_by_hand(federation, networks, 2 * number, u)
        candidates.append(
            (np.concatenate(list(networks.values())), z[0], [u == drawn[-1] for u in range(2)])
        )
    found = weights_of(state.learner.model).ravel(), state.soft[state.weight > 0][0], state.weight
    the_one_that_fits(candidates, found)


def test_sums_under_masks_teach_the_same_and_one_client_alone_teaches_nothing():
    federation = federation_with(8)
    own = {"network": lambda **keywords: toy(), "subset": 0}
    plain, masked = made(federation, **own), made(federation, **own, sums="masked")
    start = plain.init(KEY, federation)
    cohort = federation.cohort([0, 1])
    (one, _), (other, _) = plain.round(start, cohort, KEY), masked.round(start, cohort, KEY)
    assert one.weight.sum() == 8
    np.testing.assert_allclose(one.soft, other.soft, atol=1e-5)
    x = federation.public_examples
    (view,), (summed,) = (method.views(start, one, cohort, KEY) for method in (plain, masked))
    mean = view.answers(x).mean(axis=0)
    np.testing.assert_allclose(softmax(mean / HEAT), one.soft, atol=1e-6)
    assert (view.client.tolist(), summed.client.tolist()) == ([0, 1], [-1])
    np.testing.assert_allclose(summed.answers(x)[0], mean, atol=1e-6)
    alone, metrics = masked.round(start, federation.cohort([2]), KEY)
    assert alone.weight.sum() == metrics["communication"]["download_bytes"] == 0


def test_cold_means_are_nearly_one_hot():
    mean = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], np.float32)
    sharp = sharpened_by_softmax(mean, 1e-3)
    np.testing.assert_allclose(sharp, np.eye(3)[[0, 2]], atol=1e-6)
    flat = sharpened_by_softmax(np.zeros((1, 3), np.float32), 0.1)
    np.testing.assert_allclose(flat, 1 / 3, rtol=1e-6)
