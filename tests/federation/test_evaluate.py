import jax
import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from jaxfed.federation.evaluate import accuracy, balanced_accuracy, cosine_rmse


def test_accuracies_by_hand():
    truth, predicted = np.array([0, 0, 0, 2]), np.array([0, 1, -1, 2])
    assert accuracy(predicted, truth) == 0.5
    assert balanced_accuracy(predicted, truth) == pytest.approx((1 / 3 + 1) / 2)
    unknown = np.array([-1, -1])
    assert accuracy(np.append(predicted, [-1, 0]), np.append(truth, unknown)) == 0.5
    assert balanced_accuracy(
        np.append(predicted, [-1, 0]), np.append(truth, unknown)
    ) == pytest.approx((1 / 3 + 1) / 2)
    assert np.isnan(accuracy(unknown, unknown))
    assert np.isnan(balanced_accuracy(unknown, unknown))
    assert np.isnan(accuracy(truth[:0], truth[:0]))
    assert np.isnan(balanced_accuracy(truth[:0], truth[:0]))


def test_balanced_accuracy_is_scikit_learns():
    rng = np.random.default_rng(0)
    truth = rng.integers(5, size=200)
    predicted = np.where(rng.random(200) < 0.6, truth, rng.integers(5, size=200))
    assert balanced_accuracy(predicted, truth) == pytest.approx(
        balanced_accuracy_score(truth, predicted)
    )


@pytest.mark.parametrize("num_bits", [64, 1024])
def test_cosine_error_is_what_theory_expects(num_bits):
    vectors = np.random.default_rng(0).standard_normal((300, 32)).astype(np.float32)
    errors = np.array(
        [cosine_rmse(vectors, jax.random.key(s), num_bits, num_points=100) for s in range(8)]
    )
    assert np.sqrt(np.mean(errors[:, 0] ** 2)) == pytest.approx(errors[0, 1], rel=0.1)
    # To first order, theory is pi sin(theta) sqrt(p (1 - p) / L), near pi / 2 / sqrt(L) at 90 degrees.
    assert errors[0, 1] == pytest.approx(np.pi / 2 / np.sqrt(num_bits), rel=0.1)


def test_cosine_error_needs_two_vectors():
    vectors = np.zeros((3, 4), np.float32)
    vectors[0] = 1
    assert np.isnan(cosine_rmse(vectors, jax.random.key(0), 64)).all()
