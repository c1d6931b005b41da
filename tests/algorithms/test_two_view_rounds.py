"""Whole rounds of SAGE, FedLabel and FixMatch against their equations, in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import cross_entropy, gradient, log_softmax, logits, softmax, weights_of
from on_demand import on_demand
from small_round_checks import check_rounds
from small_training import RATE, clients_with, double, rounds_of, training_of, with_sources

from jaxfed.algorithms.fedlabel import fedlabel
from jaxfed.algorithms.fixmatch import fixmatch
from jaxfed.algorithms.sage import sage
from jaxfed.federation.clients import Federation
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels.pseudo_label import completed

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


def training(**changes):
    return training_of(WHOLE, augment=weak, strong_augment=double, **changes)


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


def fixmatch_term(p, log_s, least):
    return -log_s[p.argmax()] if max(p) >= least[p.argmax()] else 0


def flexmatch(p):
    """tau_c of predictions [N, 3]."""
    sure = [row.argmax() for row in p if max(row) >= TAU]
    count = np.bincount(np.array(sure, int), minlength=3)
    beta = count / max(*count, len(p) - len(sure))
    return TAU * beta / (2 - beta)


def graph(x):
    """Labels, -1 for some, and confidences of examples [..., 4]."""
    return np.floor(10 * x[..., 0]).astype(np.int32) % 4 - 1, np.abs(x[..., 1]) % 1


def graph_source(state, cohort, key, communication):
    del state, key, communication
    label, confidence = graph(np.asarray(cohort.x))
    return completed(cohort, jnp.asarray(label), jnp.asarray(confidence, jnp.float32))


def by_graph(own, received, log_s, x):
    label, confidence = graph(x)
    if max(*own, *received) >= TAU:
        return sage_term(own, received, log_s)
    return -confidence * log_s[label] if label >= 0 else 0


# {method: (made, terms of a client: x, p_G of all unlabeled examples -> number, p_L, log s -> term)}
METHODS = {
    "sage": (
        lambda: sage(training=training(), threshold=TAU, unlabeled_weight=WEIGHT),
        lambda x, received: lambda i, own, log_s: sage_term(own, received[i], log_s),
    ),
    "sage with a graph": (
        lambda: sage(
            training=with_sources(training(), graph=graph_source),
            threshold=TAU,
            unlabeled_weight=WEIGHT,
            pseudo_label="graph",
        ),
        lambda x, received: lambda i, own, log_s: by_graph(own, received[i], log_s, x[i]),
    ),
    "fedlabel": (
        lambda: fedlabel(
            training=training(),
            threshold=TAU,
            unlabeled_weight=WEIGHT,
            agreement_weight=AGREEMENT,
        ),
        lambda x, received: lambda i, own, log_s: fedlabel_term(own, received[i], log_s),
    ),
    "fixmatch by the received model": (
        lambda: fixmatch(
            training=training(), threshold=TAU, unlabeled_weight=WEIGHT, labeled_by="received"
        ),
        lambda x, received: lambda i, own, log_s: fixmatch_term(received[i], log_s, [TAU] * 3),
    ),
    "fixmatch with flexmatch's thresholds": (
        lambda: fixmatch(
            training=training(), threshold=TAU, unlabeled_weight=WEIGHT, thresholds="flexmatch"
        ),
        lambda x, received: lambda i, own, log_s: fixmatch_term(own, log_s, flexmatch(received)),
    ),
}


def trained(w, x, y, rate, terms_of):
    """A client's model after its round; the terms that counted, and all."""
    known, unknown, v, values = x[y >= 0], x[y < 0], w, []
    received = softmax(logits(w, weak(None, unknown)))
    term = terms_of(unknown, received) if len(unknown) else None
    for _ in range(WHOLE.epochs):
        own = softmax(logits(v, weak(None, unknown)))

        def terms(u, own=own):
            log_s = log_softmax(logits(u, 2 * unknown))
            return [term(i, p, s) for i, (p, s) in enumerate(zip(own, log_s, strict=True))]

        def loss(u, terms=terms):
            value = cross_entropy(u, weak(None, known), y[y >= 0]) if len(known) else 0
            return value + (WEIGHT * np.mean(terms(u)) if len(unknown) else 0)

        values += terms(v) if len(unknown) else []
        v = v - rate * gradient(loss, v)
    return v, values


@pytest.mark.parametrize(
    "name", on_demand(METHODS, at_once=["sage", "fedlabel", "fixmatch by the received model"])
)
def test_two_rounds_are_the_equations(name, tmp_path):
    made, terms_of = METHODS[name]
    algorithm = made()
    check_rounds(algorithm, FEDERATION, [None] * 3, tmp_path)
    states = rounds_of(algorithm, FEDERATION, 2)
    w, counted = weights_of(states[0].model), []
    for number in range(2):
        ends = []
        for x, y in CLIENTS:
            v, values = trained(w, x.astype(np.float64), y, RATE / (1 + number), terms_of)
            ends.append(v)
            counted += [value != 0 for value in values]
        w = np.average(ends, axis=0, weights=[len(y) for _, y in CLIENTS])
        found = weights_of(states[number + 1].model)
        np.testing.assert_allclose(found, w, rtol=2e-4, atol=2e-6)
    assert 0 < np.mean(counted) < 1


@pytest.mark.slow
def test_an_example_without_a_label_of_the_source_waits_for_the_second_stage():
    """In rounds on given labels alone it takes no part."""
    made = {
        name: sage(
            training=with_sources(training(labeled_only_rounds=1), graph=graph_source),
            threshold=TAU,
            pseudo_label=name,
        )
        for name in ("graph", "none")
    }
    first, alone = (rounds_of(algorithm, FEDERATION, 1)[1] for algorithm in made.values())
    np.testing.assert_array_equal(weights_of(first.model), weights_of(alone.model))
