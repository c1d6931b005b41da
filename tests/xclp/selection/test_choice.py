"""Settings chosen by leave-one-out: as by refits, over protocols as in the clear, and when none are."""

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
    plaintext_total,
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


def test_bytes_of_choosing():
    """Of each M all scores of labeled points, and the cohort's counts of labels."""
    vectors, labels = digits(2, 12, labeled=0.7)
    n, m = 12, sum(int((y >= 0).sum()) for y in labels)
    select = ("label_matrix:class_balanced", "alpha:0.5")
    p = Parameters(**GIVEN, select=select)
    clear = cross_client_label_propagation(vectors, labels, p)
    num_matrices = 2  # the given one, and at alpha = 0.5
    assert clear.choice.p == replace(p, select=())
    up, down = clear.communication.upload, clear.communication.download
    assert up["class_counts"] == down["class_counts"] == 4 * 2 * 10 * num_matrices
    assert up["contributions"] == 4 * 2 * 10 * (n + num_matrices * m)
    assert up["hits"] == 2 * 12 * len(settings_of(p))


def test_the_order_of_clients_does_not_matter():
    vectors, labels = data()
    order = [2, 0, 1]
    p = Parameters(**{**GIVEN, "num_bits": 2048}, select=SELECT)  # hardly any equal distances
    first = cross_client_label_propagation(vectors, labels, p)
    moved = cross_client_label_propagation(
        [vectors[j] for j in order], [labels[j] for j in order], p
    )
    assert moved.choice.metrics() == first.choice.metrics()
    for place, j in enumerate(order):
        np.testing.assert_array_equal(moved.predictions[place].labels, first.predictions[j].labels)


def test_the_loss_is_of_who_tells_it():
    """A client that has left since hits were counted has neither likelihoods nor a number of labels."""
    both = {j: evidence([[1, 0, 1, 0]], [0.9]) for j in (0, 1)}
    staying = [(0, 1), (0, 1), (0, 1), (0, 1), (0,)]

    def of(p):
        return {j: own(p)[0] for j, own in both.items()}

    def total(counts):
        here = staying.pop(0) if len(staying) > 1 else staying[0]
        return sum(counts[j] for j in here)

    p = Propagation(2, alpha=0.9, confidence="calibrated", select=("client_prior",))
    losses = [select(p, of, total).log_loss, select(p, of, plaintext_total).log_loss]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_nor_has_who_has_left_since_the_settings_that_are_chosen():
    """Its labels came back with these, and it was not there for the others."""
    p = Propagation(2, alpha=0.9, confidence="calibrated", select=("alpha:0.5",))
    staying, gone = (evidence([own, own], [0.9, 0.5]) for own in ([1, 0, 1, 1], [0, 0]))

    def of(s):
        clients = {0: staying} if s.alpha == 0.5 else {0: staying, 1: gone}
        return {j: own(s)[0] for j, own in clients.items()}

    choice = select(p, of, plaintext_total)
    alone = select(p, lambda s: {0: staying(s)[0]}, plaintext_total)
    assert (choice.p.alpha, choice.accuracy) == (0.9, 0.75)
    assert (choice.sharpness, choice.log_loss) == (alone.sharpness, alone.log_loss)


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
        return {
            0: Labeled(
                Rows(np.ascontiguousarray(values[:, ::-1]), np.ones((m, 2))),
                np.zeros(m, np.float32),
                np.zeros((m, 2), np.float32),
                np.zeros(m, int),
                np.zeros(2),
                np.zeros(2),
            )
        }

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
    choice = select(p, evidence([given, other], [0.9, 0.5]), plaintext_total)
    assert choice.p.alpha == (0.5 if moves else 0.9)
    assert choice.given_accuracy == np.mean(given)
    assert choice.accuracy == np.mean(other if moves else given)


def test_too_few_to_hide_among_choose_nothing():
    p = Propagation(2, alpha=0.9, select=("alpha:0.5",))
    choice = select(p, evidence([[0, 0, 0], [1, 1, 1]], [0.9, 0.5]), lambda counts: None)
    assert (choice.p.alpha, choice.accuracy) == (0.9, None)


@pytest.mark.parametrize("fits", [0, 1, 2])
def test_too_few_later_on_fit_no_prior_and_no_sharpness(fits):
    """What hits have chosen before they left stays chosen; so many sums of the fit are there."""
    p = Propagation(2, alpha=0.9, select=("alpha:0.5", "client_prior"), confidence="calibrated")
    hit = evidence([[0, 0, 0], [1, 1, 1]], [0.9, 0.5])
    sums = [np.zeros((len(grid) + 1, 1)) for grid in (PRIOR_LABELS, SHARPNESS)]
    for heard in (None, np.zeros((1, 3), np.int64)):  # nobody, or nobody with a label
        later = [*sums[:fits], heard, None] if fits == 2 else [*sums[:fits], None, None]
        answers = iter([np.array([[0, 0, 3], [6, 12, 3]]), *later])
        choice = select(p, hit, lambda counts, answers=answers: next(answers))
        assert (choice.p.alpha, choice.p.client_prior, choice.accuracy) == (0.5, 0.0, 1.0)
        assert (choice.sharpness, choice.log_loss) == (1.0, None)


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

    select(p, of, plaintext_total)
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


@pytest.mark.parametrize("row_sums", ["plaintext", "masked", "masked_resilient"])
@pytest.mark.slow
def test_by_balanced_hits_it_chooses_what_refits_would(row_sums):
    """One class has most labels. In the clear and under masks the same choice, the same hit rates."""
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
        row_sums=row_sums,
    )
    plain = replace(p, row_sums="plaintext", select=())
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


@pytest.mark.parametrize("measure", ["accuracy", "balanced_accuracy"])
@pytest.mark.parametrize("seed", [0, 1, 4])
@pytest.mark.slow
def test_where_all_points_are_identical_masks_change_no_choice(measure, seed):
    """Every score ties with that of another class: half a hit, whatever the order of additions."""
    rng = np.random.default_rng(seed)
    vectors = [np.ones((20, 4), np.float32) for _ in range(3)]
    labels = [
        np.where(np.arange(20) < rng.integers(5, 12), rng.integers(0, 4, 20), -1) for _ in range(3)
    ]
    select = ("alpha:0.5:0.9", "label_matrix:plain:class_balanced", "client_prior")
    p = Parameters(4, 59, num_bits=64, select=select, select_measure=measure)
    choices = [
        cross_client_label_propagation(vectors, labels, replace(p, row_sums=row_sums)).choice
        for row_sums in ("plaintext", "masked")
    ]
    assert len({(c.p.alpha, c.p.label_matrix, c.p.client_prior) for c in choices}) == 1
    assert len({(c.accuracy, c.given_accuracy) for c in choices}) == 1
