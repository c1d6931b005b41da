"""FedProto and FedTGP against their equations: networks stay at clients, prototypes travel.

Of FedTGP also the training of its server: the margin, and mini-batches.
"""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import features, gradient, log_softmax, logits, the_one_that_fits, weights_of
from small_training import KEY, RATE, federation_of, training_of

from jaxfed.algorithms.fedproto import fedproto
from jaxfed.algorithms.fedtgp import fedtgp, first_maker, made, margin, trained
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels.prototypes import Prototypes

WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has: no randomness
SIZES, LABELED, WEIGHT, DIM = [9, 12, 7], 3, 0.7, 8
COHORTS = [[0, 1], [1, 2], [0, 2]]


def loss(v, x, y, given, pull=WEIGHT):
    """The loss at v; `given` has the global prototypes by class."""
    z, log_p = features(v, x), log_softmax(logits(v, x))
    value = -sum(log_p[i, c] for i, c in enumerate(y))
    for i, c in enumerate(y.tolist()):
        if c in given:
            value += pull / DIM * sum((z[i] - given[c]) ** 2)
    return value / len(y)


def nearest(v, x, given):
    distance = {c: np.linalg.norm(features(v, x) - center, axis=1) for c, center in given.items()}
    classes = sorted(distance)
    return np.array(classes)[np.argmin([distance[c] for c in classes], axis=0)]


def test_rounds_of_fedproto_are_the_equations():
    federation = federation_of(SIZES, num_labeled=LABELED)
    algorithm = fedproto(training=training_of(WHOLE), prototype_weight=WEIGHT)
    state = algorithm.init(KEY, federation)
    assert algorithm.evaluate(state, federation) == {"has_no_model": True}
    first = weights_of(state.model)
    networks, given, trained, kept = [first for _ in SIZES], {}, set(), 0
    for number, cohort in enumerate(COHORTS):
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, federation.cohort(cohort), key)
        received, total, rows, losses = len(given), {}, {}, []
        for client in cohort:
            points, v = federation.partition.labeled[client], networks[client]
            x, y = federation.x[points].astype(np.float64), federation.y[points]
            for _ in range(2):
                losses.append(loss(v, x, y, given))
                v = v - RATE / (1 + number) * gradient(
                    lambda u, own=(x, y, given): loss(u, *own), v
                )
            networks[client] = v
            trained.add(client)
            for c in set(y.tolist()):
                own = features(v, x[y == c])
                total[c] = total.get(c, 0) + own.sum(axis=0)
                rows.setdefault(c, []).append(len(own))
        kept += len(given.keys() - rows.keys())
        given = given | {c: total[c] / sum(rows[c]) for c in rows}
        np.testing.assert_allclose(metrics["train_loss"], np.mean(losses), rtol=1e-5)
        sent = sum(map(len, rows.values()))
        assert metrics["communication"]["upload"] == {"prototypes": 2 + sent * (DIM + 1) * 4}
        down = 2 * (1 + received * DIM * 4) if received else 0
        assert metrics["communication"]["download"] == {"prototypes": down}
        prototypes = state.memory.prototypes
        assert set(np.flatnonzero(prototypes.is_present).tolist()) == set(given)
        for c, center in given.items():
            np.testing.assert_allclose(prototypes.center[c], center, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(weights_of(state.clients.model), networks, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(weights_of(state.model), first)  # nobody's network
        if number == 0:
            (_, _, without) = algorithm.evaluate(state, federation)["client_test_accuracy"]
            assert without == 0  # client 2 has not trained
    assert kept  # some class had no client in some round
    measured = algorithm.evaluate(state, federation)
    x, y = federation.x[federation.test].astype(np.float64), federation.y[federation.test]
    right = [np.mean(nearest(v, x, given) == y) for v in networks]
    np.testing.assert_allclose(measured["client_test_accuracy"], right)
    np.testing.assert_allclose(measured["test_accuracy"], np.mean(right))
    found = algorithm.evaluate.of_clients(state, federation)["client_unlabeled_accuracy"]
    for client, points in enumerate(federation.partition.unlabeled):
        x, y = federation.x[points].astype(np.float64), federation.y[points]
        np.testing.assert_allclose(found[client], np.mean(nearest(networks[client], x, given) == y))


def test_clients_keep_their_running_statistics():
    federation = federation_of([20, 20], num_labeled=10)
    algorithm = fedproto(training=training_of(WHOLE, batch_norm=True))
    state = algorithm.init(KEY, federation)
    after, metrics = algorithm.round(state, federation.cohort(), KEY)
    first, second = np.asarray(after.clients.model["norm"]["mean"][...])
    assert abs(first - second).max() > 0.01
    np.testing.assert_array_equal(after.model["norm"]["mean"][...], np.zeros(8))
    assert set(metrics["communication"]["upload"]) == {"prototypes"}


CLASSES, PULL = 3, 1.3
ENDS = np.cumsum([CLASSES * DIM, DIM, DIM * DIM, DIM])


def numbers_of(maker):
    """v and F in one vector; JAX has F's last layer before its first, and a bias before a kernel."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(maker)]
    assert [leaf.shape for leaf in leaves] == [
        *((CLASSES, DIM), (DIM,), (DIM, DIM), (DIM,), (DIM, DIM))
    ]
    return np.concatenate([leaf.ravel() for leaf in leaves])


def outputs(numbers):
    """F(v_c), one row a class."""
    v, last_bias, last, first_bias, first = np.split(numbers, ENDS)
    hidden = v.reshape(CLASSES, DIM) @ first.reshape(DIM, DIM) + first_bias
    hidden = np.where(hidden.real > 0, hidden, 0)
    return hidden @ last.reshape(DIM, DIM) + last_bias


def server_loss(numbers, sent, delta):
    """The mean over the prototypes, [(class, vector)]."""
    each = []
    for c, own in sent:
        away = np.sqrt(((own - outputs(numbers)) ** 2).sum(axis=1))
        away[c] += delta
        each.append(-log_softmax(-away)[c])
    return sum(each) / len(each)


def largest_gap(sent):
    classes = {c for c, _ in sent}
    mean = [np.mean([own for other, own in sent if other == c], axis=0) for c in classes]
    return max((np.linalg.norm(a - b) for a, b in combinations(mean, 2)), default=0)


def test_rounds_of_fedtgp_are_the_equations():
    """Two rounds with all prototypes in one batch; nobody has class 2, and only round 1 has class 1."""
    federation = federation_of(SIZES, num_labeled=3)
    algorithm = fedtgp(
        training=training_of(WHOLE),
        prototype_weight=PULL,
        server_epochs=3,
        server_rate=0.2,
        server_batch_size=64,
    )
    state = algorithm.init(KEY, federation)
    networks, given = [weights_of(state.model) for _ in SIZES], {}
    numbers = numbers_of(state.memory.maker)
    for number, cohort in enumerate([[0, 1], [1, 2]]):
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, federation.cohort(cohort), key)
        sent = []
        for client in cohort:
            points, v = federation.partition.labeled[client], networks[client]
            x, y = federation.x[points].astype(np.float64), federation.y[points]
            for _step in range(2):
                slope = gradient(lambda u, own=(x, y, given): loss(u, *own, pull=PULL), v)
                v = v - RATE / (1 + number) * slope
            networks[client] = v
            sent += [(c, features(v, x[y == c]).mean(axis=0)) for c in np.unique(y).tolist()]
        delta = largest_gap(sent)
        for _step in range(3):
            own = sent, delta
            numbers = numbers - 0.2 * gradient(lambda u, own=own: server_loss(u, *own), numbers)
        given = {c: outputs(numbers)[c] for c in {c for c, _own in sent} | given.keys()}
        assert metrics["communication"]["upload"] == {"prototypes": 2 + len(sent) * DIM * 4}
        np.testing.assert_allclose(weights_of(state.clients.model), networks, rtol=1e-4, atol=1e-5)
        found = numbers_of(state.memory.maker)
        np.testing.assert_allclose(found, numbers, rtol=1e-4, atol=2e-5)
        prototypes = state.memory.prototypes
        assert set(np.flatnonzero(prototypes.is_present).tolist()) == given.keys()
        for c in range(CLASSES):
            center = given.get(c, np.zeros(DIM))
            np.testing.assert_allclose(prototypes.center[c], center, rtol=1e-4, atol=2e-5)


def shown_by(seed, there):
    """Prototypes of clients that have these classes, float32 [K, C, D], and [(class, vector)]."""
    center = np.random.default_rng(seed).normal(size=(*np.shape(there), DIM)).astype(np.float32)
    center *= np.asarray(there)[..., None]
    sent = [(c, center[k, c].astype(float)) for k, c in np.argwhere(there).tolist()]
    return Prototypes(jnp.asarray(center), jnp.asarray(there, bool)), sent


@pytest.mark.parametrize("there", [[[1, 1, 0], [1, 1, 0]], [[1, 1, 1]], [[0, 1, 0]], [[0, 0, 0]]])
def test_the_margin_is_the_largest_gap_up_to_a_threshold(there):
    shown, sent = shown_by(0, there)
    np.testing.assert_allclose(margin(shown, 100.0), largest_gap(sent), rtol=1e-6)
    np.testing.assert_allclose(margin(shown, 0.5), min(largest_gap(sent), 0.5), rtol=1e-6)


def test_an_epoch_takes_every_prototype_once():
    """Of three prototypes in mini-batches of two, one pair comes first, and the third alone is last."""
    shown, sent = shown_by(1, [[1, 0, 1], [0, 1, 0]])
    maker = first_maker(CLASSES, DIM, KEY)
    keywords = {"margin": jnp.float32(0.7), "rate": 0.3, "batch_size": 2}
    after = trained(maker, shown, jnp.array([4, 9]), KEY, epochs=1, **keywords)
    candidates = []
    for last in range(3):
        numbers = numbers_of(maker)
        for batch in (sent[:last] + sent[last + 1 :], sent[last : last + 1]):
            slope = gradient(lambda u, batch=batch: server_loss(u, batch, 0.7), numbers)
            numbers = numbers - 0.3 * slope
        candidates.append((numbers,))
    the_one_that_fits(candidates, (numbers_of(after),))
    backwards = Prototypes(shown.center[::-1], shown.is_present[::-1])
    same = trained(maker, backwards, jnp.array([9, 4]), KEY, epochs=1, **keywords)
    np.testing.assert_allclose(numbers_of(same), numbers_of(after), rtol=1e-5, atol=1e-6)


def test_epochs_differ_and_nobodys_prototypes_change_nothing():
    shown, _sent = shown_by(2, [[1, 1, 1], [1, 1, 1]])
    maker = first_maker(CLASSES, DIM, KEY)
    keywords = {"margin": jnp.float32(0.7), "rate": 0.3, "batch_size": 1}
    ids = jnp.array([0, 1])
    twice = trained(maker, shown, ids, KEY, epochs=2, **keywords)
    once = trained(maker, shown, ids, KEY, epochs=1, **keywords)
    again = trained(once, shown, ids, KEY, epochs=1, **keywords)
    assert np.abs(made(twice) - made(again)).max() > 1e-4  # the second epoch has another order
    nothing = shown_by(2, [[0, 0, 0]])[0]
    same = trained(maker, nothing, jnp.array([-1]), KEY, epochs=2, **keywords)
    jax.tree.map(np.testing.assert_array_equal, same, maker)
