"""What a trained state is measured by, and its predictions: one pass over the test split for both."""

import jax
import numpy as np
from toy_learner import NUM_CLASSES, clients

from jaxfed.testing.method_checks import assert_equal
from jaxfed.training.round import evaluation
from jaxfed.training.round.server_hooks import Classifier

FEDERATION = clients()


def test_the_test_split_is_predicted_once(monkeypatch):
    def probabilities(weights, x):
        return jax.nn.softmax(x @ weights)

    passes, in_batches = [], evaluation.in_batches

    def counted(function, x, size):
        passes.append(len(x))
        return in_batches(function, x, size)

    judged = evaluation.evaluation_by(Classifier(lambda state: state, probabilities))
    state = np.eye(NUM_CLASSES, dtype=np.float32)
    expected = judged.outputs.predictions(state, FEDERATION)
    x, y = FEDERATION.x[FEDERATION.test], FEDERATION.y[FEDERATION.test]
    np.testing.assert_array_equal(expected.label, x.argmax(axis=1))
    monkeypatch.setattr(evaluation, "in_batches", counted)
    assert judged.evaluate(state, FEDERATION)["test_accuracy"] == np.mean(expected.label == y)
    assert_equal(judged.outputs.predictions(state, FEDERATION), expected)
    assert passes == [len(y)]
