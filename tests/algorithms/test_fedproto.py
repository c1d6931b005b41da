"""FedProto against its equations: networks that stay at clients, means of their features that travel."""

import jax
import numpy as np
from float64_training import features, gradient, log_softmax, logits, weights_of
from small_training import KEY, RATE, federation_of, training_of

from jaxfed.algorithms.fedproto import fedproto
from jaxfed.training.local.batches import Batches

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


def test_rounds_are_the_equations():
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
        assert set(np.flatnonzero(prototypes.is_there).tolist()) == set(given)
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
    found = algorithm.outputs.clients(state, federation)["client_unlabeled_accuracy"]
    for client, points in enumerate(federation.partition.unlabeled):
        x, y = federation.x[points].astype(np.float64), federation.y[points]
        np.testing.assert_allclose(found[client], np.mean(nearest(networks[client], x, given) == y))


def test_a_client_without_labels_keeps_its_network_and_sends_nothing():
    federation = federation_of([6, 6], num_labeled=4)
    labeled = federation.partition.labeled
    partition = federation.partition._replace(labeled=(labeled[0], labeled[1][:0]))
    federation = federation.__class__(
        federation.x, federation.y, partition, 3, test=federation.test
    )
    algorithm = fedproto(training=training_of(WHOLE))
    state = algorithm.init(KEY, federation)
    after, metrics = algorithm.round(state, federation.cohort(), KEY)
    classes = np.unique(federation.y[labeled[0]])
    np.testing.assert_array_equal(after.clients.has_trained, [True, False])
    np.testing.assert_array_equal(weights_of(after.clients.model)[1], weights_of(state.model))
    np.testing.assert_array_equal(np.flatnonzero(after.memory.prototypes.is_there), classes)
    assert np.isfinite(after.memory.prototypes.center).all()
    sent = {"prototypes": 1 + len(classes) * (DIM + 1) * 4}
    assert metrics["communication"]["upload"] == sent


def test_clients_keep_their_running_statistics():
    federation = federation_of([20, 20], num_labeled=10)
    algorithm = fedproto(training=training_of(WHOLE, batch_norm=True))
    state = algorithm.init(KEY, federation)
    after, metrics = algorithm.round(state, federation.cohort(), KEY)
    first, second = np.asarray(after.clients.model["norm"]["mean"][...])
    assert abs(first - second).max() > 0.01
    np.testing.assert_array_equal(after.model["norm"]["mean"][...], np.zeros(8))
    assert set(metrics["communication"]["upload"]) == {"prototypes"}
