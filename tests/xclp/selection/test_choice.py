"""Settings chosen by leave-one-out: as by refits, and when none are."""

from dataclasses import replace
from functools import cache
from itertools import product

import jax
import numpy as np
import pytest
from dense_xclp import dense_algorithm_1
from secure_labels import digits

from jaxfed.algorithms.xclp import xclp
from jaxfed.federation.clients import Federation
from jaxfed.xclp import (
    Parameters,
    Propagation,
    cross_client_label_propagation,
    drawn_seed,
    setup,
)
from jaxfed.xclp.one_shot.cosine_error import cosine_rmse
from jaxfed.xclp.selection.choice import (
    PRIOR_LABELS,
    fits_prior,
    select,
    settings_of,
)
from jaxfed.xclp.selection.leave_one_out import Labeled
from jaxfed.xclp.steps.class_scores import Rows
from jaxfed.xclp.steps.prediction import SHARPNESS

GIVEN = {"num_classes": 10, "num_bits": 64, "num_neighbors": 3, "alpha": 0.9}
SELECT = ("alpha:0.5:0.8", "label_matrix:class_balanced", "client_prior")


@cache
def data():
    return digits(3, 60, labeled=0.4)


def refit_hits(p, clients=(0, 1, 2)):
    """Which of their points get their label back when it is hidden from everybody: by NumPy, anew."""
    vectors, labels = data()
    found, start = [], np.cumsum([0, *map(len, labels)])
    for client in clients:
        own = labels[client]
        for i in np.flatnonzero(own >= 0):
            hidden = [y.copy() for y in labels]
            hidden[client][i] = -1
            again, _, _ = dense_algorithm_1(vectors, hidden, p)
            found.append(again[start[client] + i] == own[i])
    return np.array(found)


def test_chooses_what_refits_would():
    p = Parameters(**GIVEN, select=("alpha:0.5:0.9", "label_matrix:class_balanced"))
    hit = {s: refit_hits(s) for s in settings_of(p)}
    given, best = hit[settings_of(p)[0]], max(hit.values(), key=np.sum)
    better = best.sum() - given.sum() > np.sqrt((best != given).sum())
    choice = cross_client_label_propagation(*data(), p).choice
    assert choice.given_accuracy == given.mean()
    assert choice.accuracy == (best if better else given).mean() == hit[choice.p].mean()
    assert choice.num_settings == len(hit) == 3
    assert choice.chosen == {"alpha": choice.p.alpha, "label_matrix": choice.p.label_matrix}
    reported = choice.metrics()["selected"]
    assert reported["alpha"] == choice.p.alpha
    assert [kind for kind, one in reported["label_matrix"].items() if one] == [
        choice.p.label_matrix
    ]


@cache
def in_the_clear():
    return cross_client_label_propagation(*data(), Parameters(**GIVEN, select=SELECT))


@pytest.mark.parametrize(
    "more", [{}, {"num_bits": 32, "select": ("num_bits:512", "num_neighbors:5")}]
)
def test_what_is_chosen_is_run(more):
    chosen = cross_client_label_propagation(
        *data(), Parameters(**{**GIVEN, "select": SELECT, **more})
    )
    if more:
        assert chosen.choice.p.num_neighbors == 5
    again = cross_client_label_propagation(*data(), chosen.choice.p)
    for mine, other in zip(chosen.predictions, again.predictions, strict=True):
        for one, two in zip(mine, other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_bits_that_were_chosen_are_those_of_the_estimates_that_are_reported():
    federation = Federation.from_clients(list(zip(*data(), strict=True)), num_classes=10)
    method = xclp(**{**GIVEN, "num_bits": 32}, select=("num_bits:512", "num_neighbors:5"))
    key = jax.random.key(0)
    _, metrics = method.round(method.init(key, federation), federation.cohort(), key)
    assert metrics["selected"] == {"num_bits": 512, "num_neighbors": 5}
    pi, vectors = setup(drawn_seed(key)), np.concatenate(data()[0])
    reported = metrics["cosine_rmse"], metrics["cosine_rmse_theory"]
    assert reported == pytest.approx(cosine_rmse([vectors], pi, 512))


def test_bytes_are_those_of_what_was_sent_to_choose():
    """Codes of the most bits that any setting asks for; counts of settings, and then of the prior's fit."""
    _, labels = data()
    n = sum(map(len, labels))
    up = in_the_clear().communication.upload
    num_settings = len(settings_of(Parameters(**GIVEN, select=SELECT)))
    assert num_settings == 1 + 2
    assert up["hits"] == 3 * 12 * (num_settings + 1)
    assert up["log_likelihoods"] == 3 * 4 * (len(PRIOR_LABELS) + 1 + len(SHARPNESS) + 1)
    nothing = data()[0], [np.full_like(y, -1) for y in labels]  # which chooses no other bits
    stays = cross_client_label_propagation(*nothing, Parameters(**GIVEN, select=("num_bits:96",)))
    assert stays.choice.p.num_bits == 64
    assert stays.communication.upload["codes"] == n * 96 // 8
    prior = cross_client_label_propagation(*data(), Parameters(**GIVEN, client_prior=0.5))
    assert prior.communication.upload["class_counts"] == 4 * 3 * 10
    assert prior.communication.download["class_counts"] == 4 * 3 * 10


@pytest.mark.parametrize("labels", ["none", "one"])
def test_with_hardly_any_labels_the_given_settings_stay(labels):
    """One label has a weak prior beside them; none has the given one."""
    vectors, some = data()
    hidden = [np.full_like(y, -1) for y in some]
    if labels == "one":
        hidden[0][0] = 4
    p = Parameters(**GIVEN, select=SELECT)
    result = cross_client_label_propagation(vectors, hidden, p)
    found = result.choice.p
    assert replace(found, client_prior=0.0, client_prior_labels=0.0) == replace(p, select=())
    assert found.client_prior < 0.1
    assert bool(found.client_prior) == (labels == "one")
    assert bool(result.communication.upload["class_counts"]) == (labels == "one")


def evidence(hit, wanted):
    """Made so that setting number s, by its alpha, has hits `hit[s]`."""

    def of(p):
        own = hit[wanted.index(p.alpha)]
        values = np.where(np.array(own)[:, None] == np.arange(2), np.float32(1), np.float32(0))
        m = len(own)
        return Labeled(
            Rows(np.ascontiguousarray(values[:, ::-1]), np.ones((m, 2))),
            np.zeros(m, np.float32),
            np.zeros((m, 2), np.float32),
            np.zeros(m, int),
            np.zeros(2),
            np.zeros(2),
        )

    return of


@pytest.mark.parametrize(
    ("given", "other", "moves"),
    [
        ([1, 1, 0, 0], [1, 1, 1, 0], False),  # 1 gained of 1 that differ: no more than sqrt(1)
        ([1, 1, 0, 0], [1, 1, 1, 1], True),  # 2 of 2
        ([1, 0, 0, 0, 0], [0, 1, 1, 0, 0], False),  # 1 of 3
        ([1, 0, 0, 0, 0], [0, 1, 1, 1, 1], True),  # 3 of 5
        ([1, 1, 1, 1], [1, 1, 0, 0], False),
    ],
)
def test_moves_from_the_given_settings_by_one_standard_error(given, other, moves):
    p = Propagation(2, alpha=0.9, select=("alpha:0.5",))
    choice = select(p, evidence([given, other], [0.9, 0.5]))
    assert choice.p.alpha == (0.5 if moves else 0.9)
    assert choice.given_accuracy == np.mean(given)
    assert choice.accuracy == np.mean(other if moves else given)


def test_settings_are_all_combinations():
    p = Propagation(2, alpha=0.9, select=("alpha:0.5:0.9", "label_matrix", "client_prior"))
    found = settings_of(p)
    assert found[0] == replace(p, select=())
    assert len(found) == len(set(found)) == 2 * 2
    assert fits_prior(p)
    assert not fits_prior(replace(p, select=("alpha",)))


def test_nothing_is_solved_twice_and_nothing_is_taken_for_something_else():
    """What every graph and every M has to say is asked for once; class shares do not change M."""
    graphs = ("num_neighbors:5:10", "similarity_power:1:3", "num_bits:64:128")
    matrices = ("alpha:0.5:0.9", "label_matrix:plain:class_balanced")
    p = Parameters(2, 5, alpha=0.9, num_bits=64, select=(*graphs, *matrices))
    asked = []

    def of(s):
        asked.append((s.num_neighbors, s.similarity_power, s.num_bits, s.alpha))
        return evidence([[1], [1]], [0.9, 0.5])(s)

    select(p, of)
    expected = {*product((5, 10), (1.0, 3.0), (64, 128), (0.5, 0.9))}
    assert set(asked) == expected
    assert len(asked) == len(expected)


def test_alpha_may_be_left_to_leave_one_out():
    p = Parameters(2, alpha="auto", select=("label_matrix:class_balanced",))
    assert (p.alpha, p.select) == (0.99, ("alpha", "label_matrix:class_balanced"))
    own = Parameters(2, alpha="auto", select=["alpha:0.5:0.9"])
    assert (own.alpha, own.select) == (0.99, ("alpha:0.5:0.9",))
    assert {s.num_neighbors for s in settings_of(p)} == {p.num_neighbors}


def balanced(hit, labels):
    """Mean over the classes with labels of the shares that come back."""
    return np.mean([np.mean(hit[labels == c]) for c in np.unique(labels)])


@pytest.mark.slow
def test_by_balanced_hits_it_chooses_what_refits_would():
    """One class has most labels."""
    rng = np.random.default_rng(3)
    y = np.repeat([0, 0, 0, 0, 1, 2], 20)
    x = rng.normal(size=(len(y), 6)) + 1.3 * np.eye(3, 6)[y]
    parts = np.array_split(rng.permutation(len(y)), 3)
    vectors = [x[part].astype(np.float32) for part in parts]
    labels = [np.where(np.arange(len(part)) < 15, y[part], -1) for part in parts]
    p = Parameters(
        3,
        5,
        num_bits=256,
        select=("alpha:0.5:0.9", "label_matrix:plain:class_balanced"),
        select_measure="balanced_accuracy",
    )
    plain = replace(p, select=())
    answers = np.concatenate([own[own >= 0] for own in labels])

    def refit(s):
        found = []
        for client, own in enumerate(labels):
            for i in np.flatnonzero(own >= 0):
                hidden = [each.copy() for each in labels]
                hidden[client][i] = -1
                again = cross_client_label_propagation(vectors, hidden, replace(plain, **s))
                found.append(again.predictions[client].labels[i] == own[i])
        return np.array(found)

    tried = [{"alpha": 0.99, "label_matrix": "plain"}] + [
        {"alpha": alpha, "label_matrix": matrix}
        for alpha, matrix in product((0.5, 0.9), ("plain", "class_balanced"))
    ]
    hit = [refit(s) for s in tried]
    qualities = [balanced(own, answers) for own in hit]
    counts = np.bincount(answers)
    best = int(np.argmax(qualities))
    noise = np.sqrt(np.sum((hit[best] != hit[0]) / (3 * counts[answers]) ** 2))
    expected = best if qualities[best] - qualities[0] > noise else 0
    choice = cross_client_label_propagation(vectors, labels, p).choice
    np.testing.assert_allclose(choice.given_accuracy, qualities[0])
    np.testing.assert_allclose(choice.accuracy, qualities[expected])
    assert {key: getattr(choice.p, key) for key in tried[0]} == tried[expected]
    assert expected != 0
