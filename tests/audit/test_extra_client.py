"""Labelings of one graph that are solved together are those that the method makes of each by itself."""

import numpy as np
import pytest

from jaxfed.audit.extra_client import simulated_scores
from jaxfed.privacy import randomized_response
from jaxfed.xclp import Parameters, cross_client_label_propagation
from jaxfed.xclp.settings.parameters import LABEL_MATRICES

SIZES, CLASSES, DIM, LABELINGS = (20, 13), 3, 6, 3


def points(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, DIM)).astype(np.float32) for n in SIZES]


def labelings(seed=1):
    """The last client's points have none."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(CLASSES, size=(LABELINGS, SIZES[0]))
    return np.where(rng.random(drawn.shape) < 0.4, drawn, -1).astype(np.int32)


def settings(**changes):
    return Parameters(num_classes=CLASSES, num_bits=128, num_neighbors=4, seed=3, **changes)


def one_by_one(p):
    nobody = np.full(SIZES[1], -1, np.int32)
    runs = [cross_client_label_propagation(points(), [own, nobody], p) for own in labelings()]
    return np.stack([run.predictions[1].scores for run in runs])


@pytest.mark.slow
@pytest.mark.parametrize("label_matrix", LABEL_MATRICES)
def test_together_is_one_by_one(label_matrix):
    p = settings(label_matrix=label_matrix, tolerance=1e-7)
    together = simulated_scores(points(), labelings(), slice(20, 33), p)
    assert together.shape == (LABELINGS, SIZES[1], CLASSES)
    np.testing.assert_allclose(together, one_by_one(p), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("label_matrix", ["plain", "class_balanced"])
def test_answers_under_noise_are_unbiased_and_others_for_each_labeling(label_matrix, monkeypatch):
    """Of answers that nobody changes the bias is taken out, as the method does it."""
    p = settings(label_epsilon=1.0, label_matrix=label_matrix)
    same = np.repeat(labelings()[:1], 2, axis=0)
    first, second = simulated_scores(points(), same, slice(20, 33), p)
    assert (first != second).any()
    monkeypatch.setattr(randomized_response, "randomize_labels", lambda labels, *_: labels)
    together = simulated_scores(points(), labelings(), slice(20, 33), p)
    np.testing.assert_allclose(together, one_by_one(p), rtol=1e-4, atol=1e-5)
