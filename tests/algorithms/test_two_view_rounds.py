"""Whole rounds of SAGE, FedLabel and FixMatch against their equations, in NumPy."""

import numpy as np
import pytest
from float64_training import cross_entropy, gradient, log_softmax, logits, softmax, weights_of
from small_round_checks import check_rounds
from small_training import RATE, clients_with, double, rounds_of, training_of

from jaxfed.algorithms.fedlabel import fedlabel
from jaxfed.algorithms.fixmatch import fixmatch
from jaxfed.algorithms.sage import sage
from jaxfed.federation.clients import Federation
from jaxfed.training.local.batches import Batches

WHOLE = Batches("joint", size=64, epochs=3)  # every batch is all that a client has
TAU, WEIGHT, AGREEMENT, ONES = 0.55, 0.7, 0.6, np.eye(3)
KAPPA = np.log(2) / 0.05
CLIENTS = clients_with([([0, 1, 2], 5), ([2, 0], 4), ([], 7), ([1, 2, 0, 1], 0)])
FEDERATION = Federation.from_clients(
    CLIENTS, test=(np.zeros((2, 4), np.float32), np.zeros(2, np.int32)), num_classes=3
)


def weak(key, x):
    del key
    return 1.5 * x - 0.2


def entropy(p):
    return -sum(a * np.log(a) for a in p if a > 0)


def sage_term(own, received, log_s):
    if max(*own, *received) < TAU:
        return 0
    share = np.exp(-KAPPA * abs(max(own) - max(received))) if max(own) >= TAU else 0
    target = share * ONES[own.argmax()] + (1 - share) * ONES[received.argmax()]
    return -entropy(target) - target @ log_s


def fedlabel_term(own, received, log_s):
    best, other = (own, received) if max(own) >= max(received) else (received, own)
    if max(best) < TAU:
        return 0
    value = -log_s[best.argmax()]
    if best.argmax() == other.argmax():
        value += AGREEMENT * max(other) / max(best) * (-entropy(other) - other @ log_s)
    return value


def fixmatch_term(own, received, log_s):
    return -log_s[received.argmax()] if max(received) >= TAU else 0


METHODS = {  # and their term of one example: p_L, p_G, log s
    sage: ({}, sage_term),
    fedlabel: ({"agreement_weight": AGREEMENT}, fedlabel_term),
    fixmatch: ({"labeled_by": "received"}, fixmatch_term),
}


def trained(w, x, y, rate, term):
    """A client's model after its round; the terms that counted, and all."""
    known, unknown, v, values = x[y >= 0], x[y < 0], w, []
    received = softmax(logits(w, weak(None, unknown)))
    for _ in range(WHOLE.epochs):
        own = softmax(logits(v, weak(None, unknown)))

        def terms(u, own=own):
            log_s = log_softmax(logits(u, 2 * unknown))
            return [term(*each) for each in zip(own, received, log_s, strict=True)]

        def loss(u, terms=terms):
            value = cross_entropy(u, weak(None, known), y[y >= 0]) if len(known) else 0
            return value + (WEIGHT * np.mean(terms(u)) if len(unknown) else 0)

        values += terms(v) if len(unknown) else []
        v = v - rate * gradient(loss, v)
    return v, values


@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_are_the_equations(method, tmp_path):
    settings, term = METHODS[method]
    training = training_of(WHOLE, augment=weak, strong_augment=double)
    algorithm = method(training=training, threshold=TAU, unlabeled_weight=WEIGHT, **settings)
    check_rounds(algorithm, FEDERATION, [None] * 3, tmp_path)
    states = rounds_of(algorithm, FEDERATION, 2)
    w, counted = weights_of(states[0].model), []
    for number in range(2):
        ends = []
        for x, y in CLIENTS:
            v, values = trained(w, x.astype(np.float64), y, RATE / (1 + number), term)
            ends.append(v)
            counted += [value != 0 for value in values]
        w = np.average(ends, axis=0, weights=[len(y) for _, y in CLIENTS])
        found = weights_of(states[number + 1].model)
        np.testing.assert_allclose(found, w, rtol=2e-4, atol=2e-6)
    assert 0 < np.mean(counted) < 1
