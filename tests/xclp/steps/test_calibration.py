"""Calibrated confidences: by hand, against NumPy and refits, through a session as in the clear."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from secure_labels import digits

from jaxfed.algorithms.per_client_lp import per_client_lp
from jaxfed.algorithms.pooled_lp import pooled_lp
from jaxfed.federation.clients import Federation
from jaxfed.privacy import randomized_response
from jaxfed.xclp import Parameters, cross_client_label_propagation, label_later
from jaxfed.xclp.steps.prediction import (
    ANY_CLASS,
    SHARPNESS,
    calibrated,
    likeliest,
    log_likelihoods,
    probabilities,
)

GIVEN = {"num_classes": 10, "num_bits": 64, "num_neighbors": 3}


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_shares_to_a_power(array):
    scores = array(np.array([[3, 1, 0], [0, 0, 0], [-1, 2, 2]], np.float32))
    powers = np.array([[0.9, 0.1, 0], [1 / 3] * 3, [0, 0.5, 0.5]])
    q = probabilities(scores, 2.0)
    np.testing.assert_allclose(q, 0.99 * powers + 0.01 / 3, rtol=1e-6)
    largest = [0.99 * 0.9 + 0.01 / 3, 0, 0.99 * 0.5 + 0.01 / 3]
    np.testing.assert_allclose(calibrated(scores, 2.0), largest, rtol=1e-6)


def test_likelihoods_are_sums_over_labels():
    rng = np.random.default_rng(0)
    scores = (rng.random((20, 4)) ** 3).astype(np.float32)
    scores[3], scores[4, 1:] = 0, 0
    answers = rng.integers(4, size=20)
    *ours, count = log_likelihoods(scores, answers)[:, 0]
    assert count == len(answers)
    for gamma, found in zip(SHARPNESS, ours, strict=True):
        total = 0.0
        for row, answer in zip(scores.astype(float), answers, strict=True):
            powers = (row / row.max()) ** gamma if row.any() else np.ones(4)
            share = powers / powers.sum()
            total += np.log((1 - ANY_CLASS) * share[answer] + ANY_CLASS / 4)
        np.testing.assert_allclose(found, total, atol=1e-2)
    np.testing.assert_array_equal(log_likelihoods(scores[:0], answers[:0]), 0)


def test_the_sharpness_that_made_the_labels_is_found():
    rng = np.random.default_rng(1)
    scores = (1 + 0.1 * rng.random((3000, 5))).astype(np.float32)  # flat, as at alpha near 1
    made_by = np.asarray(probabilities(scores, 45.0)).astype(float)
    answers = np.array([rng.choice(5, p=row / row.sum()) for row in made_by])
    gamma, loss = likeliest(log_likelihoods(scores, answers))
    assert gamma in (32.0, 2.0**5.5, 64.0)
    assert 0 < loss < np.log(5)
    right = scores.argmax(axis=1) == answers
    assert abs(calibrated(scores, gamma).mean() - right.mean()) < 0.03


@cache
def data():
    return digits(3, 40, labeled=0.4)


@cache
def in_the_clear():
    return cross_client_label_propagation(*data(), Parameters(**GIVEN, confidence="calibrated"))


def by_refits(vectors, labels, p):
    """The likeliest sharpness and its loss, from a labeling without each label in turn."""
    left_out, answers = [], []
    for client, own in enumerate(labels):
        for i in np.flatnonzero(own >= 0):
            hidden = [y.copy() for y in labels]
            hidden[client][i] = -1
            again = cross_client_label_propagation(vectors, hidden, p).predictions[client]
            left_out.append(again.scores[i])
            answers.append(own[i])
    return likeliest(log_likelihoods(np.array(left_out), np.array(answers)))


@pytest.mark.slow
def test_sharpness_is_what_refits_would_find():
    vectors, labels = data()
    p = Parameters(**GIVEN)
    gamma, loss = by_refits(vectors, labels, p)
    choice = in_the_clear().choice
    assert choice.sharpness == gamma
    np.testing.assert_allclose(choice.log_loss, loss, atol=1e-3)
    assert choice.metrics()["calibration"]["sharpness"] == gamma


RANDOMIZED = {"label_epsilon": 1.0, "label_matrix": "class_balanced", "client_prior": 0.5}


@cache
def refits_of_randomized_labels():
    """One for all protocols, which do not change a refit."""
    return by_refits(*data(), Parameters(**GIVEN, **RANDOMIZED))


def test_of_randomized_labels_the_bias_is_out_of_all_that_is_counted(monkeypatch):
    """Of scores, classes and priors; of answers that nobody changes, as refits take it out."""
    monkeypatch.setattr(randomized_response, "randomize_labels", lambda labels, *_: labels)
    gamma, loss = refits_of_randomized_labels()
    p = Parameters(**GIVEN, **RANDOMIZED, confidence="calibrated")
    choice = cross_client_label_propagation(*data(), p).choice
    assert choice.sharpness == gamma
    np.testing.assert_allclose(choice.log_loss, loss, atol=1e-3)


def test_labels_stay_and_confidences_are_probabilities():
    ours, plain = in_the_clear(), cross_client_label_propagation(*data(), Parameters(**GIVEN))
    for mine, other in zip(ours.predictions, plain.predictions, strict=True):
        np.testing.assert_array_equal(mine.labels, other.labels)
        np.testing.assert_array_equal(mine.scores, other.scores)
        expected = calibrated(mine.scores, ours.choice.sharpness)
        np.testing.assert_array_equal(mine.confidences, expected)
    (later,) = label_later(ours, data()[0][:1], ours.artifacts.p)
    expected = calibrated(later.scores, ours.choice.sharpness)
    np.testing.assert_array_equal(later.confidences, expected)
    assert ours.communication.upload["log_likelihoods"] == 4 * 3 * (len(SHARPNESS) + 1)


@pytest.mark.parametrize("method", [per_client_lp, pooled_lp])
def test_label_propagation_beside_it(method):
    federation = Federation.from_clients(list(zip(*data(), strict=True)), num_classes=10)
    found = {}
    for kind in ("entropy", "calibrated"):
        algorithm = method(num_classes=10, num_neighbors=3, confidence=kind)
        state = algorithm.init(None, federation)
        found[kind], metrics = algorithm.round(state, federation.cohort(), None)
    np.testing.assert_array_equal(found["entropy"].label, found["calibrated"].label)
    confidence = found["calibrated"].confidence
    assert np.all((confidence == 0) | (confidence > 0.1))
    assert not np.allclose(confidence, found["entropy"].confidence)
    assert ("calibration" in metrics) == (method is pooled_lp)
