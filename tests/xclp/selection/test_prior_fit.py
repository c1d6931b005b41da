"""The fitted client prior: as by the formulas, for like and unlike clients, for few labels and none."""

from dataclasses import replace

import numpy as np
import pytest

from jaxfed.xclp import Propagation
from jaxfed.xclp.selection.choice import PRIOR_LABELS, fitted
from jaxfed.xclp.selection.leave_one_out import Labeled
from jaxfed.xclp.steps.class_scores import Rows
from jaxfed.xclp.steps.prediction import ANY_CLASS, SHARPNESS

NUM_CLASSES = 3
GIVEN = Propagation(NUM_CLASSES, alpha=0.9)
# All pairs (client_prior, client_prior_labels) that a fit can return.
PRIORS = [(1 / gamma, labels) for labels in PRIOR_LABELS for gamma in SHARPNESS]


def clients(counts, sharp=1.0, seed=0):
    """Leave-one-out data of all clients: `counts` labels of each class; scores favor the label's class."""
    rng = np.random.default_rng(seed)
    cohort = np.sum(counts, axis=0).astype(np.float32)
    owner = np.repeat(np.arange(len(counts)), np.sum(counts, axis=1))
    answers = np.concatenate([np.repeat(np.arange(NUM_CLASSES), own) for own in counts])
    y = np.eye(NUM_CLASSES, dtype=np.float32)[answers]
    z = rng.uniform(0.1, 1, y.shape).astype(np.float32) + np.float32(sharp) * y
    rows = Rows(z, np.broadcast_to(cohort, z.shape))
    own = np.array(counts, np.float32)[owner]
    return Labeled(rows, np.zeros(len(y), np.float32), y, answers, own, cohort)


def by_hand(points):
    """The pair of the module's docstring: loops over labels, in float64."""

    def ratio(i, labels):
        y = points.answers[i]
        mine, all_of = points.client_counts[i].astype(float), points.cohort_counts.astype(float)
        mine[y] -= 1
        all_of[y] -= 1
        pi = (all_of + 1) / (all_of.sum() + NUM_CLASSES)
        return (mine + labels * pi) / (mine.sum() + labels), pi

    def mean_place(logs):
        weights = np.exp(np.array(logs) - max(logs))
        return round(sum(k * w for k, w in enumerate(weights)) / weights.sum())

    def every(log):
        return sum(map(log, range(len(points.answers))))

    def of_labels(s):
        return every(lambda i: np.log(ratio(i, s)[0][points.answers[i]]))

    labels = PRIOR_LABELS[mean_place([of_labels(s) for s in PRIOR_LABELS])]

    def of_scores(gamma):
        def log(i):
            mine, pi = ratio(i, labels)
            z = points.rows.values[i].astype(float)
            q = (z / z.max()) ** gamma * mine / pi
            q = (1 - ANY_CLASS) * q / q.sum() + ANY_CLASS / NUM_CLASSES
            return np.log(q[points.answers[i]])

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
    found = fitted(points, GIVEN)
    assert (found.client_prior, found.client_prior_labels) == pytest.approx(by_hand(points))
    assert replace(found, client_prior=0.0, client_prior_labels=0.0) == GIVEN
    assert (found.client_prior, found.client_prior_labels) in PRIORS


def test_unlike_clients_are_smoothed_by_fewer_labels():
    found = {n: fitted(clients(COUNTS[n], 0.3), GIVEN) for n in COUNTS}
    smoothing = [found[name].client_prior_labels for name in ("unlike", "between", "like")]
    assert smoothing == sorted(smoothing)
    assert smoothing[0] <= 1 < smoothing[1] < 100 < smoothing[2]


def test_labels_that_tell_nothing_give_the_middle_of_both_grids():
    """One label, that none other reaches: a weak prior."""
    own = clients([[1, 0, 0]])
    unreached = own._replace(rows=own.rows._replace(values=np.zeros_like(own.rows.values)))
    found = fitted(unreached, GIVEN)
    assert (found.client_prior, found.client_prior_labels) == (1 / SHARPNESS[13], 8.0)


def test_scores_that_say_nothing_leave_more_to_the_prior():
    betas = [
        fitted(clients(COUNTS["between"], sharp), GIVEN).client_prior for sharp in (0.0, 0.3, 3.0)
    ]
    assert betas == sorted(betas, reverse=True)
    assert betas[0] > 4 * betas[1] > 4 * betas[2]


def test_estimates_of_randomized_labels_may_be_negative():
    points = clients(COUNTS["between"])
    shifted = points._replace(
        client_counts=points.client_counts - 6, cohort_counts=points.cohort_counts - 9
    )
    found = fitted(shifted, GIVEN)
    assert np.isfinite([found.client_prior, found.client_prior_labels]).all()
