"""XCLP on real feature vectors against a dense float64 Algorithm 1; `pytest -m slow`, needs $JAXFED_DATA."""

import os

import numpy as np
import pytest
from dense_xclp import dense_algorithm_1
from secure_labels import disagreement

from jaxfed.data import load
from jaxfed.data.features import pretrained_features
from jaxfed.xclp import Parameters, cross_client_label_propagation, propagate_labels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("JAXFED_DATA"), reason="JAXFED_DATA names no data root"),
]


@pytest.mark.parametrize("n", [2_500, 10_000])
def test_labels_agree_with_the_dense_algorithm(n):
    """CIFAR-10's first test images through EfficientNet-Lite0, 5 clients, every tenth point labeled."""
    data = load("cifar10")
    features = pretrained_features(data.x_test)[:n]
    truth = data.y_test[:n]
    labels = np.where(np.arange(n) % 10 == 0, truth, -1)
    p = Parameters(num_classes=10)
    vectors, client_labels = np.array_split(features, 5), np.array_split(labels, 5)
    result = cross_client_label_propagation(vectors, client_labels, p)
    ours = np.concatenate([prediction.labels for prediction in result.predictions])
    dense, _, _ = dense_algorithm_1(vectors, client_labels, p)
    share = np.mean(ours == dense)
    print(f"n = {n}: {share:.4%} of labels equal, accuracy {np.mean(ours == truth):.4f}")
    assert share >= 0.999


@pytest.mark.parametrize("hamming", ["masked", "ot", "phe"])
def test_secure_protocols_change_nothing(hamming):
    """500 vectors, 5 clients, L = 4096: labels and confidences as in the clear, Z to fixed point."""
    data = load("cifar10")
    vectors = np.array_split(pretrained_features(data.x_test)[:500], 5)
    labels = np.array_split(np.where(np.arange(500) % 5 == 0, data.y_test[:500], -1), 5)
    parameters = {"num_classes": 10, "influence": "columns"}
    plain = propagate_labels(vectors, labels, **parameters)
    secure = propagate_labels(vectors, labels, hamming=hamming, row_sums="masked", **parameters)
    assert disagreement(secure, plain, 5) <= 1
