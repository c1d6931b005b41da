"""The fitted client prior: as by the formulas, for like and unlike clients, for few labels and none."""

from dataclasses import replace

import numpy as np
import pytest

from jaxfed.xclp import Propagation
from jaxfed.xclp.selection.choice import PRIOR_LABELS, fitted, plaintext_total
from jaxfed.xclp.selection.leave_one_out import Labeled
from jaxfed.xclp.steps.class_scores import Rows
from jaxfed.xclp.steps.prediction import ANY_CLASS, SHARPNESS

NUM_CLASSES = 3
GIVEN = Propagation(NUM_CLASSES, alpha=0.9)
# All pairs (client_prior, client_prior_labels) that a fit can return.
PRIORS = [(1 / gamma, labels) for labels in PRIOR_LABELS for gamma in SHARPNESS]


def clients(counts, sharp=1.0, seed=0):
    """Each client's leave-one-out data: `counts` labels of each class; scores favor the label's class."""
    rng = np.random.default_rng(seed)
    cohort = np.sum(counts, axis=0).astype(np.float32)
    found = {}
    for client, own in enumerate(counts):
        answers = np.repeat(np.arange(NUM_CLASSES), own)
        y = np.eye(NUM_CLASSES, dtype=np.float32)[answers]
        z = rng.uniform(0.1, 1, y.shape).astype(np.float32) + np.float32(sharp) * y
        rows = Rows(z, np.broadcast_to(cohort, z.shape))
        nothing = np.zeros(len(y), np.float32)
        found[client] = Labeled(rows, nothing, y, answers, y.sum(axis=0), cohort)
    return found


def by_hand(points):
    """The pair of the module's docstring: loops over labels, in float64."""
    cohort = sum(np.bincount(own.answers, minlength=NUM_CLASSES) for own in points.values())

    def ratio(own, i, labels):
        y = own.answers[i]
        mine = np.bincount(own.answers, minlength=NUM_CLASSES).astype(float)
        all_of = cohort.astype(float)
        mine[y] -= 1
        all_of[y] -= 1
        pi = (all_of + 1) / (all_of.sum() + NUM_CLASSES)
        return (mine + labels * pi) / (mine.sum() + labels), pi

    def mean_place(logs):
        weights = np.exp(np.array(logs) - max(logs))
        return round(sum(k * w for k, w in enumerate(weights)) / weights.sum())

    def every(log):
        return sum(log(own, i) for own in points.values() for i in range(len(own.answers)))

    def of_labels(s):
        return every(lambda own, i: np.log(ratio(own, i, s)[0][own.answers[i]]))

    labels = PRIOR_LABELS[mean_place([of_labels(s) for s in PRIOR_LABELS])]

    def of_scores(gamma):
        def log(own, i):
            mine, pi = ratio(own, i, labels)
            z = own.rows.values[i].astype(float)
            q = (z / z.max()) ** gamma * mine / pi
            q = (1 - ANY_CLASS) * q / q.sum() + ANY_CLASS / NUM_CLASSES
            return np.log(q[own.answers[i]])

        return every(log)

    gamma = SHARPNESS[mean_place([of_scores(gamma) for gamma in SHARPNESS])]
    return 1 / gamma, labels


COUNTS = {
    "unlike": [[20, 0, 1], [0, 25, 0], [1, 0, 18]],
    "between": [[9, 3, 2], [2, 10, 4], [3, 1, 8]],
    "like": [[30, 30, 30]] * 4,
    "few": [[1, 1, 0], [0, 1, 1]],
    "one has none": [[5, 1, 0], [0, 0, 0], [0, 3, 4]],
}


@pytest.mark.parametrize("sharp", [0.0, 0.3])
@pytest.mark.parametrize("name", COUNTS)
def test_is_the_mean_place_of_the_likelihoods(name, sharp):
    points = clients(COUNTS[name], sharp)
    found = fitted(points, GIVEN, plaintext_total)
    assert (found.client_prior, found.client_prior_labels) == pytest.approx(by_hand(points))
    assert replace(found, client_prior=0.0, client_prior_labels=0.0) == GIVEN
    assert (found.client_prior, found.client_prior_labels) in PRIORS


def test_unlike_clients_are_smoothed_by_fewer_labels():
    found = {n: fitted(clients(COUNTS[n], 0.3), GIVEN, plaintext_total) for n in COUNTS}
    smoothing = [found[name].client_prior_labels for name in ("unlike", "between", "like")]
    assert smoothing == sorted(smoothing)
    assert smoothing[0] <= 1 < smoothing[1] < 100 < smoothing[2]


def test_labels_that_tell_nothing_give_the_middle_of_both_grids():
    """One label, that none other reaches: a weak prior."""
    (own,) = clients([[1, 0, 0]]).values()
    unreached = own._replace(rows=own.rows._replace(values=np.zeros_like(own.rows.values)))
    found = fitted({0: unreached}, GIVEN, plaintext_total)
    assert (found.client_prior, found.client_prior_labels) == (1 / SHARPNESS[13], 8.0)


def test_scores_that_say_nothing_leave_more_to_the_prior():
    betas = [
        fitted(clients(COUNTS["between"], sharp), GIVEN, plaintext_total).client_prior
        for sharp in (0.0, 0.3, 3.0)
    ]
    assert betas == sorted(betas, reverse=True)
    assert betas[0] > 4 * betas[1] > 4 * betas[2]


@pytest.mark.parametrize("missing", [0, 1])
def test_without_a_sum_the_given_prior_stays(missing):
    sums = iter([plaintext_total] * missing)
    given = replace(GIVEN, client_prior=0.5)
    found = fitted(
        clients(COUNTS["between"]), given, lambda counts: next(sums, lambda c: None)(counts)
    )
    assert found is given


def test_estimates_of_randomized_labels_may_be_negative():
    points = clients(COUNTS["between"])
    shifted = {
        j: own._replace(client_counts=own.client_counts - 6, cohort_counts=own.cohort_counts - 9)
        for j, own in points.items()
    }
    found = fitted(shifted, GIVEN, plaintext_total)
    assert np.isfinite([found.client_prior, found.client_prior_labels]).all()
