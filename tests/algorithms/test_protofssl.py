"""ProtoFSSL: who helps whom, what is sent, and XCLP's labels for it; test_protofssl_rounds has its rounds."""

import dataclasses
from functools import cache, partial

import jax
import numpy as np
import pytest
from dense_xclp import dense_algorithm_1
from float64_training import features, weights_of
from small_round_checks import check_rounds
from small_training import (
    KEY,
    Net,
    assert_same,
    clients_with,
    federation_of,
    rounds_of,
    training_of,
)

from jaxfed import xclp
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.protofssl.method import prototype_loss
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import Communication
from jaxfed.models.model import from_module
from jaxfed.training.local.batches import Batches, Episodes
from jaxfed.training.local.losses import Batch
from jaxfed.training.pseudo_labels.prototypes import Prototypes
from jaxfed.training.specification import LabelSources

MODEL = from_module(partial(Net, batch_norm=False))
TASK = PrototypeTask(num_classes=3, max_labels=12)
STATE = MODEL.init(KEY)


def training(**changes):
    return training_of(Batches("joint", size=4, epochs=3), **changes)


@cache
def made(**settings):
    """A method, compiled once for several tests; cohorts are padded to four clients."""
    settings = {"num_helpers": 2, "min_labels": 2} | settings
    return protofssl(
        training=training(clients_multiple=4), task=TASK, unlabeled_query=4, **settings
    )


def test_a_query_on_its_prototype_has_a_slope():
    """The root of a distance of 0 has none. Two classes of two examples each, which are one point."""
    label, used = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int32), np.ones(8, bool)
    batch = Batch(np.ones((8, 4), np.float32), label, np.ones(8, np.float32), used, used)
    nobody = Prototypes(np.zeros((1, 2, 8), np.float32), np.zeros((1, 2), bool))
    sizes = Episodes(num_classes=2, support=2, query=2, unlabeled=0)
    settings = {"unlabeled_weight": 0.3, "temperature": 0.5, "distance": "euclidean"}
    loss = prototype_loss(MODEL, nobody, sizes, by_helpers=False, **settings)
    gradient = jax.jit(jax.grad(lambda state: loss(state, STATE, batch, KEY)[0]))(STATE)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_where_nobody_has_labels_nothing_moves():
    before, after = rounds_of(made(), federation_of([8] * 4, num_labeled=0), 1, [[0, 1]])
    assert_same(before.model, after.model)


FOUR = federation_of([8, 8, 8, 8], num_labeled=6)


def test_helpers_are_clients_of_the_round_before():
    states = rounds_of(made(), FOUR, 3, [[0, 1], [2, 3], [1, 2]])
    assert not states[0].memory.helpers.is_present.any()
    for state, cohort in zip(states[1:], [[0, 1], [2, 3], [1, 2]], strict=True):
        store = state.memory
        shown = [np.asarray(store.latest.center[c]) for c in cohort]
        for helper in np.asarray(store.helpers.center):
            assert any(np.array_equal(helper, center) for center in shown)
    assert states[3].memory.round.tolist() == [1, 3, 3, 2]


def test_rounds_are_compiled_once_and_resumed_with_the_same_bits(tmp_path):
    check_rounds(made(), FOUR, [None] * 3, tmp_path)


def test_newest_helpers_are_of_earlier_rounds_where_a_round_has_too_few():
    states = rounds_of(made(helper_choice="newest"), FOUR, 4, [[0], [1], [1], [2]])
    for state, expected in zip(states[1:], [[0], [1, 0], [1, 0], [2, 1]], strict=True):
        store = state.memory
        for row, client in enumerate(expected):
            np.testing.assert_array_equal(store.helpers.center[row], store.latest.center[client])
        assert not store.helpers.is_present[len(expected) :].any()


def test_with_an_interval_helpers_stay_as_they_were():
    states = rounds_of(made(helper_interval=2), FOUR, 4, [[0], [1], [2], [0]])
    centers = [np.asarray(state.memory.helpers.center) for state in states]
    assert not np.array_equal(centers[0], centers[1])
    np.testing.assert_array_equal(centers[1], centers[2])
    assert not np.array_equal(centers[2], centers[3])
    np.testing.assert_array_equal(centers[3], centers[4])


FIVE = federation_of([8, 8, 8, 8], num_labeled=5)  # labels of a client; too few of some classes


@pytest.mark.parametrize("network", ["own", "mean"])
def test_bytes_are_those_of_the_prototypes_that_there_are(network):
    """Of two clients; the other two rows of a cohort are padding."""
    algorithm = made() if network == "own" else made(prototype_network=network)
    state = algorithm.init(KEY, FIVE)
    for number in range(2):
        before = state
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, FIVE.cohort([0, 1]), key)
        shown = int(state.memory.latest.is_present.sum())
        sent = metrics["communication"]
        # A byte with each client's, for three bits that say which there are.
        assert sent["upload"]["prototypes"] == 2 + 4 * 8 * shown
        helpers = before.memory.helpers.is_present
        received = 2 * int(helpers.any(axis=1).sum() + 4 * 8 * helpers.sum())
        assert sent["download"]["prototypes"] == received
        again = {"own": 1, "mean": 2}[network]
        assert sent["download"]["parameters"] == again * sent["upload"]["parameters"]
    counts = [np.bincount(FIVE.y[p], minlength=3) for p in FIVE.partition.labeled[:2]]
    assert shown == sum((c >= 2).sum() for c in counts) < sum((c > 0).sum() for c in counts)


def test_noise_is_on_what_is_shown_and_nothing_else():
    """What is withheld, of fewer than two labels, gets none."""
    quiet, loud = (
        rounds_of(algorithm, FIVE, 1, [[0, 1]])[1] for algorithm in (made(), made(noise=2.0))
    )
    assert_same(quiet.model, loud.model)
    _, metrics = made(noise=2.0).round(loud, FIVE.cohort([0, 1]), KEY)
    assert "prototype_epsilon" not in metrics  # embeddings have no bound
    noisy, plain = (np.asarray(state.memory.latest.center) for state in (loud, quiet))
    is_present = np.asarray(loud.memory.latest.is_present)
    labels = [FIVE.y[points] for points in FIVE.partition.labeled[:2]]
    enough = np.array([np.bincount(y, minlength=3) >= 2 for y in labels])
    assert not enough.all()
    np.testing.assert_array_equal(is_present[:2], enough)
    assert not is_present[2:].any()
    assert not noisy[~is_present].any()
    difference = noisy - plain
    assert not difference[~is_present].any()
    assert 1 < difference[is_present].std() < 3
    assert len(np.unique(difference[is_present])) == difference[is_present].size


PARAMETERS = xclp.Parameters(num_classes=3, num_bits=256, num_neighbors=3)
LABELS = [([0, 0, 1, 2], 3), ([1, 2, 2], 2), ([], 2)]  # given, and how many examples have none
CLIENTS = clients_with(LABELS)
FEDERATION = Federation.from_clients(CLIENTS, test=(CLIENTS[0][0], np.zeros(7, int)), num_classes=3)


def points(w, x, y):
    """What of a client is in the graph, and its labels; a prototype in the row of its first label."""
    z, is_one = features(w, x.astype(np.float64)), np.ones(len(y), bool)
    for k in np.unique(y[y >= 0]):
        own = np.flatnonzero(y == k)
        z[own[0]] = z[own].mean(axis=0)
        is_one[own[1:]] = False
    return z[is_one], y[is_one]


def test_labels_of_a_graph_with_prototypes_are_those_of_algorithm_1():
    """The given ones count 1, others as Algorithm 1 has them."""
    training = training_of(Batches("joint", size=8, epochs=1))
    training = dataclasses.replace(training, labels=LabelSources(xclp_parameters=PARAMETERS))
    state = fedavg(training=training).init(KEY, FEDERATION)
    w, key = weights_of(state.model), jax.random.fold_in(KEY, 1)
    found = training.pseudo_labels["xclp_prototypes"](
        state, FEDERATION.cohort(), key, Communication()
    )
    each = [points(w, x, y) for x, y in CLIENTS]
    vectors, given = zip(*each, strict=True)
    seeded = dataclasses.replace(PARAMETERS, seed=xclp.drawn_seed(key))
    label, confidence, _ = dense_algorithm_1(vectors, given, seeded)
    is_open = np.concatenate(given) < 0
    label, confidence = iter(label[is_open]), iter(confidence[is_open])
    for client, (_, y) in enumerate(CLIENTS):
        expected = [k if k >= 0 else next(label) for k in y]
        np.testing.assert_array_equal(found.label[client, : len(y)], expected)
        weights = [1 if k >= 0 else next(confidence) for k in y]
        np.testing.assert_allclose(found.weight[client, : len(y)], weights, atol=1e-4)
