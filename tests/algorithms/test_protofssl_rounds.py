"""ProtoFSSL's Algorithm 1 in NumPy: rounds of clients that lack classes, labels, or unlabeled examples.

Which labels an episode drew for its support cannot be seen from outside; of all ways there are, exactly one
must lead to the network that the server has.
"""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import features, gradient, log_softmax, the_one_that_fits, weights_of
from small_training import KEY, RATE, clients_with, training_of, with_sources

from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.federation.clients import Federation
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels

EPOCHS, UNLABELED_WEIGHT, TEMPERATURE, MU = 2, 0.7, 0.5, 0.4
LABELS = [  # of each client; the others of its examples have none
    ([0, 0, 0, 1], 4),
    ([1, 2, 2], 2),
    ([], 3),
    ([0, 1, 2, 2], 0),
    ([], 0),
]


CLIENTS = clients_with(LABELS)
TEST = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
FEDERATION = Federation.from_clients(CLIENTS, test=(TEST, np.arange(6) % 3), num_classes=3)


def distances(z, centers, distance):
    squares = np.square(z[:, None] - centers).sum(axis=-1)
    return squares / z.shape[1] if distance == "mean_squared" else np.sqrt(squares)


def probabilities(z, prototypes, distance):
    """[n, 3] by {class: center}; 0 of classes without one."""
    p = np.zeros((len(z), 3))
    p[:, list(prototypes)] = np.exp(
        log_softmax(-distances(z, np.array(list(prototypes.values())), distance))
    )
    return p


def means(helpers, least=1):
    """{class: mean over those that have it, if so many do}."""
    shown = {k: [own[k] for own in helpers if k in own] for k in range(3)}
    return {k: np.mean(each, axis=0) for k, each in shown.items() if len(each) >= least}


def completed(helpers):
    return [means(helpers) | own for own in helpers]


def source(x):
    """A label and a weight of any example, as if of another method."""
    return np.abs(x[..., :3]).argmax(axis=-1).astype(np.int32), np.abs(np.sin(x[..., 3]))


def fixed_labels(state, cohort, key, communication):
    del state, key, communication
    label, weight = map(np.asarray, source(np.asarray(cohort.x)))
    is_given = np.asarray(cohort.y) >= 0
    label = np.where(is_given, cohort.y, np.where(cohort.mask, label, -1))
    weight = np.where(is_given, 1, weight * np.asarray(cohort.mask))
    return PseudoLabels(jnp.asarray(label), jnp.asarray(weight, jnp.float32), {})


def target_of(w, unlabeled, helpers, known, settings):
    """Weights [u, 3] of log p: targets over the classes that are known, and how many examples count."""
    if settings["targets"] == "xclp":
        label, weight = source(unlabeled)
        target = np.eye(3)[label] * weight[:, None]
        counts = np.isin(label, known)
    else:
        if not helpers or not len(unlabeled):
            return np.zeros((len(unlabeled), 3)), 0
        each = [probabilities(features(w, unlabeled), own, settings["distance"]) for own in helpers]
        target = np.mean(each, axis=0)
        if settings["missing_class"] == "leave_out":
            target[:, [k for k in range(3) if k not in known]] = 0
        target = target ** (1 / TEMPERATURE)
        total = target.sum(axis=1)
        counts = total > 0
        target = target / np.where(counts, total, 1)[:, None]
    target[:, [k for k in range(3) if k not in known]] = 0
    return target, counts.sum()


def trained(w, client, supports, helpers, rate, settings, with_unlabeled):
    """E steps on Eq. 8, by the support's row of each class in each epoch."""
    x, y = (np.asarray(a) for a in CLIENTS[client])
    x, unlabeled = x.astype(np.float64), x[y < 0].astype(np.float64)
    received = w
    for rows in supports:
        support = dict(zip(np.unique(y[y >= 0]), rows, strict=True))
        queries = [i for i in np.flatnonzero(y >= 0) if i not in rows]
        fixed = means(helpers) if settings["prototypes"] == "global" else None
        known = list(support if fixed is None else fixed)
        queries = [i for i in queries if y[i] in known]
        target, count = target_of(w, unlabeled, helpers, known, settings)

        given = support, queries, fixed, known, target, count

        def loss(v, given=given):
            support, queries, fixed, known, target, count = given
            value = settings["mu"] / 2 * np.sum((v - received) ** 2)
            if not known:
                return value
            centers = (
                features(v, x[[support[k] for k in known]])
                if fixed is None
                else np.array([fixed[k] for k in known])
            )

            def log_p(z):
                return log_softmax(-distances(z, centers, settings["distance"]))

            if queries:
                own = log_p(features(v, x[queries]))
                value = value - np.mean([own[n, known.index(y[i])] for n, i in enumerate(queries)])
            if count and with_unlabeled:
                own = log_p(features(v, unlabeled))
                value = value - UNLABELED_WEIGHT * np.sum(target[:, known] * own) / count
            return value

        w = w - rate * gradient(loss, w)
    return w


def shown(w, client):
    """{class: mean of all its labels}."""
    x, y = CLIENTS[client]
    z = features(w, x.astype(np.float64))
    return {int(k): z[y == k].mean(axis=0) for k in np.unique(y[y >= 0])}


def episodes(client):
    """All ways to draw one label of each class, E times; two or less are left for the query."""
    y = CLIENTS[client][1]
    each = [np.flatnonzero(y == k) for k in np.unique(y[y >= 0])]
    return product(list(product(*each)), repeat=EPOCHS)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mu": MU, "distance": "mean_squared", "missing_class": "mean"},
        {"prototypes": "global", "prototype_sums": "plaintext"},
        pytest.param({"targets": "xclp", "unlabeled_after": 1}, marks=pytest.mark.slow),
        pytest.param({"prototype_network": "mean"}, marks=pytest.mark.slow),
    ],
    ids=["paper", "code", "global", "xclp", "mean"],
)
def test_rounds_are_algorithm_1(changes):
    settings = {
        "mu": 0.0,
        "distance": "euclidean",
        "missing_class": "leave_out",
        "prototypes": "local",
        "targets": "helpers",
        "unlabeled_after": 0,
        "prototype_sums": "none",
        "prototype_network": "own",
    } | changes
    sums = settings["prototype_sums"] != "none"
    training = training_of(Batches("joint", size=4, epochs=EPOCHS), clients_multiple=5)
    algorithm = protofssl(
        training=with_sources(training, xclp=fixed_labels),
        task=PrototypeTask(num_classes=3, max_labels=FEDERATION.max_labels),
        support=1,
        query=2,
        unlabeled_query=5,
        unlabeled_weight=UNLABELED_WEIGHT,
        temperature=TEMPERATURE,
        num_helpers=5,
        **settings,
    )
    state = algorithm.init(KEY, FEDERATION)
    w, helpers = weights_of(state.model), []
    np.testing.assert_allclose(algorithm.predict(state, TEST), 1 / 3, rtol=1e-6)
    for number, taking_part in enumerate([[0, 1, 2, 3, 4], [0, 1, 3], [2, 1, 0]]):
        state, _ = algorithm.round(
            state, FEDERATION.cohort(taking_part), jax.random.fold_in(KEY, number)
        )
        rate, counts = RATE / (1 + number), number >= settings["unlabeled_after"]
        learning = [client for client in sorted(taking_part) if LABELS[client][0]]
        sizes = [len(CLIENTS[client][1]) for client in learning]
        outcomes = [
            [
                trained(w, client, supports, helpers, rate, settings, counts)
                for supports in episodes(client)
            ]
            for client in learning
        ]
        candidates = [
            (np.average(models, axis=0, weights=sizes), models) for models in product(*outcomes)
        ]
        w, models = the_one_that_fits(candidates, (weights_of(state.model),))
        if settings["prototype_network"] == "mean":
            models = [w] * len(learning)
        sent = [shown(model, client) for model, client in zip(models, learning, strict=True)]
        if sums:
            helpers = [means(sent, least=2)]
        else:
            helpers = completed(sent) if settings["missing_class"] == "mean" else sent
            latest = state.memory.latest
            for client, own in zip(learning, sent, strict=True):
                assert np.flatnonzero(latest.is_present[client]).tolist() == list(own)
                found = np.asarray(latest.center[client])[list(own)]
                np.testing.assert_allclose(found, list(own.values()), rtol=1e-4, atol=2e-5)
        each = [probabilities(features(w, TEST), own, settings["distance"]) for own in helpers]
        np.testing.assert_allclose(
            algorithm.predict(state, TEST), np.mean(each, axis=0), rtol=1e-3, atol=1e-5
        )
