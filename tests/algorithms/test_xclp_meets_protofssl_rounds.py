"""Where XCLP meets ProtoFSSL, in NumPy: labels by its Algorithm 1 as printed, and rounds of training on them.

ProtoFSSL's loss with XCLP's labels for targets, and FedAvg on labels of a graph whose labeled points are
prototypes. Of what an episode may have drawn exactly one must lead to the network that the server has.
"""

import dataclasses
from itertools import product

import jax
import numpy as np
import pytest
from dense_xclp import dense_algorithm_1
from float64_training import (
    features,
    gradient,
    log_softmax,
    logits,
    the_one_that_fits,
    weights_of,
)
from small_training import KEY, RATE, clients_with, training_of

from jaxfed import xclp
from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import Communication
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels.label_sources import LabelSources

EPOCHS, UNLABELED_WEIGHT = 2, 0.7
PARAMETERS = xclp.Parameters(num_classes=3, num_bits=256, num_neighbors=3)
LABELS = [([0, 0, 1, 2], 3), ([1, 2, 2], 2), ([], 2)]  # given, and how many examples have none


CLIENTS = clients_with(LABELS)
FEDERATION = Federation.from_clients(CLIENTS, test=(CLIENTS[0][0], np.zeros(7, int)), num_classes=3)


def training():
    made = training_of(Batches("joint", size=8, epochs=EPOCHS))
    return dataclasses.replace(made, labels=LabelSources(xclp_parameters=PARAMETERS))


def points(w, client, by_prototypes):
    """What of a client is in the graph, and its labels; a prototype in the row of its first label."""
    x, y = CLIENTS[client]
    z, is_one = features(w, x.astype(np.float64)), np.ones(len(y), bool)
    for k in np.unique(y[y >= 0]) if by_prototypes else ():
        own = np.flatnonzero(y == k)
        z[own[0]] = z[own].mean(axis=0)
        is_one[own[1:]] = False
    return z[is_one], y[is_one]


def labeled(w, key, by_prototypes):
    """Each client's labels and weights: the given ones with 1, others as Algorithm 1 has them."""
    vectors, given = zip(*(points(w, k, by_prototypes) for k in range(3)), strict=True)
    seeded = dataclasses.replace(PARAMETERS, seed=xclp.drawn_seed(key))
    label, confidence, _ = dense_algorithm_1(vectors, given, seeded)
    is_open = np.concatenate(given) < 0
    label, confidence = iter(label[is_open]), iter(confidence[is_open])
    for _, y in CLIENTS:
        full = [k if k >= 0 else next(label) for k in y]
        yield np.array(full), np.array([1.0 if k >= 0 else next(confidence) for k in y])


def weighted_loss(client, label, weight):
    x, _ = CLIENTS[client]
    used = label >= 0
    x, label, weight = x[used].astype(np.float64), label[used], weight[used]
    return lambda v: -np.mean(weight * log_softmax(logits(v, x))[np.arange(len(label)), label])


def episode_loss(client, label, weight, support):
    """Eq. 8 by the support's row of each class, {class: row}."""
    x, y = CLIENTS[client]
    x, known = x.astype(np.float64), list(support)
    queries = [i for i in np.flatnonzero(y >= 0) if i not in support.values()]
    others = [i for i in np.flatnonzero(y < 0) if label[i] in known]

    def loss(v):
        centers = features(v, x[list(support.values())])

        def cross_entropies(rows):
            apart = features(v, x[rows])[:, None] - centers
            log_p = log_softmax(-np.sqrt(np.square(apart).sum(axis=-1)))
            return -log_p[np.arange(len(rows)), [known.index(label[i]) for i in rows]]

        value = np.mean(cross_entropies(queries))
        if others:
            value = value + UNLABELED_WEIGHT * np.mean(weight[others] * cross_entropies(others))
        return value

    return loss


def supports(client):
    y = CLIENTS[client][1]
    classes = np.unique(y[y >= 0])
    for rows in product(*(np.flatnonzero(y == k) for k in classes)):
        yield dict(zip(classes.tolist(), rows, strict=True))


def outcomes(w, client, label, weight, rate, with_episodes):
    """All networks that the client may come to."""
    if not with_episodes:
        epochs = [[weighted_loss(client, label, weight)] * EPOCHS]
    else:
        each = [episode_loss(client, label, weight, own) for own in supports(client)]
        epochs = product(each, repeat=EPOCHS)
    for losses in epochs:
        v = w
        for loss in losses:
            v = v - rate * gradient(loss, v)
        yield v


@pytest.mark.parametrize("name", ["fedavg_xclp_prototypes", "protofssl"])
@pytest.mark.slow
def test_rounds_are_those_of_the_transcription(name):
    with_episodes = name == "protofssl"
    settings = {
        "task": PrototypeTask(num_classes=3, max_labels=FEDERATION.max_labels),
        "targets": "xclp",
        "support": 1,
        "query": 2,
        "unlabeled_query": 4,
        "unlabeled_weight": UNLABELED_WEIGHT,
    }
    made = training()
    algorithm = ALGORITHMS[name](training=made, **(settings if with_episodes else {}))
    source = made.pseudo_labels["xclp" if with_episodes else "xclp_prototypes"]
    state, cohort = algorithm.init(KEY, FEDERATION), FEDERATION.cohort()
    w = weights_of(state.model)
    for number in range(2):
        key = jax.random.fold_in(KEY, number)
        label_key, _ = jax.random.split(key)
        teaching = list(labeled(w, label_key, not with_episodes))
        found = source(state, cohort, label_key, Communication())
        for client, (label, weight) in enumerate(teaching):
            np.testing.assert_array_equal(found.label[client, : len(label)], label)
            np.testing.assert_allclose(found.weight[client, : len(label)], weight, atol=1e-4)
        state, _ = algorithm.round(state, cohort, key)
        learning = [k for k in range(3) if LABELS[k][0] or not with_episodes]
        each = [
            list(outcomes(w, k, *teaching[k], RATE / (1 + number), with_episodes)) for k in learning
        ]
        sizes = [np.sum(teaching[k][0] >= 0) for k in learning]
        candidates = [
            (np.average(models, axis=0, weights=sizes), models) for models in product(*each)
        ]
        w, models = the_one_that_fits(candidates, (weights_of(state.model),))
        for client, own in zip(learning, models, strict=True) if with_episodes else ():
            x, y = CLIENTS[client]
            z, latest = features(own, x.astype(np.float64)), state.memory.latest
            assert np.flatnonzero(latest.is_there[client]).tolist() == np.unique(y[y >= 0]).tolist()
            for k in np.unique(y[y >= 0]):
                np.testing.assert_allclose(
                    latest.center[client, k], z[y == k].mean(axis=0), rtol=1e-4, atol=2e-5
                )
