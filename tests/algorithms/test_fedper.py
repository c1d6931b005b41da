"""FedPer and FedRep against their equations: the body is averaged, every client keeps a head."""

import jax
import numpy as np
import optax
import pytest
from float64_training import cross_entropy, gradient, logits, weights_of
from small_round_checks import check_rounds
from small_training import KEY, RATE, federation_of, training_of

from jaxfed.algorithms.fedper import fedper, mean_head
from jaxfed.algorithms.fedrep import fedrep
from jaxfed.training import aggregate
from jaxfed.training.local.batches import Batches

WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has: no randomness
BODY = 40  # of the 67 numbers
SIZES, COHORTS, HEAD_EPOCHS = [9, 12, 7], [[0, 1], [1, 2], [0, 1]], 3


def head_of(state, client):
    head = jax.tree.map(lambda leaf: leaf[client], state.clients.head)
    return np.concatenate([np.asarray(head["last"][n][...]).ravel() for n in ("kernel", "bias")])


class Descent:
    """Gradient descent with momentum on one part of the numbers; each part has a velocity of its own."""

    def __init__(self, momentum):
        self.momentum, self.velocity = momentum, np.zeros(67)

    def step(self, v, x, y, rate, part):
        moves = {"head": slice(BODY, None), "body": slice(BODY), "both": slice(None)}[part]
        slope = gradient(lambda u: cross_entropy(u, x, y), v)
        self.velocity[moves] = self.momentum * self.velocity[moves] + slope[moves]
        after = v.copy()
        after[moves] -= rate * self.velocity[moves]
        return after


@pytest.mark.parametrize(
    ("method", "momentum"),
    [(fedper, 0.0), (fedrep, 0.0), pytest.param(fedrep, 0.8, marks=pytest.mark.slow)],
)
def test_three_rounds_are_the_equations(method, momentum, tmp_path):
    """With momentum, clients keep the states of their optimizers too."""
    federation = federation_of(SIZES, num_labeled=6)
    training = training_of(
        WHOLE,
        clients_multiple=3,
        weighting=aggregate.uniformly,
        client_optimizer="kept" if momentum else "fresh",
        optimizer=lambda rate: optax.sgd(rate, momentum or None),
    )
    descents = [Descent(momentum) for _ in SIZES]
    keywords = {"head_epochs": HEAD_EPOCHS} if method is fedrep else {}
    algorithm = method(training=training, **keywords)
    check_rounds(algorithm, federation, [None] * 3, tmp_path)
    state = algorithm.init(KEY, federation)
    first = weights_of(state.model)
    w, heads, trained = first[:BODY], [first[BODY:] for _ in SIZES], set()
    parts = ["head"] * HEAD_EPOCHS + ["body"] * 2 if method is fedrep else ["both"] * 2
    for number, cohort in enumerate(COHORTS):
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, federation.cohort(cohort), key)
        num_bytes = {"parameters": len(cohort) * BODY * 4}
        assert metrics["communication"]["upload"] == num_bytes
        assert metrics["communication"]["download"] == num_bytes
        ends = []
        for client in cohort:
            points, v = federation.partition.labeled[client], np.concatenate([w, heads[client]])
            x, y = federation.x[points].astype(np.float64), federation.y[points]
            for part in parts:
                v = descents[client].step(v, x, y, RATE / (1 + number), part)
            ends.append(v[:BODY])
            heads[client] = v[BODY:]
            trained.add(client)
        w = np.mean(ends, axis=0)
        expected = np.concatenate([w, first[BODY:]])
        np.testing.assert_allclose(weights_of(state.model), expected, rtol=2e-4, atol=2e-5)
        for client, head in enumerate(heads):
            np.testing.assert_allclose(head_of(state, client), head, rtol=2e-4, atol=2e-5)
        if number == 0:  # client 2 has not trained
            mean = np.mean([heads[client] for client in sorted(trained)], axis=0)
            at_test = accuracy(np.concatenate([w, mean]), federation, federation.test)
            assert algorithm.evaluate(state, federation)["test_accuracy"] == at_test
    measured = algorithm.evaluate.of_clients(state, federation)["client_unlabeled_accuracy"]
    expected = [
        accuracy(np.concatenate([w, head]), federation, points)
        for head, points in zip(heads, federation.partition.unlabeled, strict=True)
    ]
    np.testing.assert_allclose(measured, expected)


def accuracy(w, federation, points):
    found = logits(w, federation.x[points].astype(np.float64)).argmax(axis=1)
    return np.mean(found == federation.y[points])


def test_before_any_has_trained_the_mean_is_of_all():
    federation = federation_of(SIZES)
    algorithm = fedper(training=training_of(WHOLE))
    state = algorithm.init(KEY, federation)
    jax.tree.map(
        lambda mean, own: np.testing.assert_allclose(mean, own[0], rtol=1e-6),
        mean_head(state.clients),
        state.clients.head,
    )


def test_clients_without_labels_keep_their_head_and_do_not_count():
    federation = federation_of([6, 6, 6], num_labeled=4)
    labeled, unlabeled = federation.partition.labeled, federation.partition.unlabeled
    partition = federation.partition._replace(
        labeled=(labeled[0], labeled[1][:0], labeled[2]),
        unlabeled=(unlabeled[0], unlabeled[1], unlabeled[2][:0]),
    )
    federation = federation.__class__(
        federation.x, federation.y, partition, 3, test=federation.test
    )
    algorithm = fedper(training=training_of(WHOLE))
    state = algorithm.init(KEY, federation)
    assert algorithm.evaluate.of_clients(state, federation) == {}
    after, _ = algorithm.round(state, federation.cohort(), KEY)
    np.testing.assert_array_equal(after.clients.has_trained, [True, False, True])
    np.testing.assert_array_equal(head_of(after, 1), head_of(state, 1))
    found = algorithm.evaluate.of_clients(after, federation)["client_unlabeled_accuracy"]
    np.testing.assert_array_equal(np.isnan(found), [False, True, True])
