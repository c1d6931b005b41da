"""Features of a model that clients train first: what it sees, what it ends with, killed or not."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.config import file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.preprocessing import feature_training, labeled_part
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError
from jaxfed.host.checkpoint import Checkpoints

CONFIG = "ml_collections_configs/femnist.py:linear,smoke"
SMALL = (
    "dataset.train_size=400",
    "federation.num_clients=4",
    "cohort_size=2",
    "federation.labeled_fraction=0.4",
    "preprocessing.rounds=6",
    "training.learning_rate=0.3",
    "model.embedding=8",
    "checkpoint_every=2",
    "xclp.num_bits=128",
)


@pytest.fixture(scope="module")
def config():
    return file.load(CONFIG, SMALL)


@pytest.fixture(scope="module")
def raw(config):
    """The clients with the examples that the model takes."""
    images = file.load(CONFIG, [*SMALL, "preprocessing.kind=images"])
    return Simulation(images).federation(0)


def learned(config, federation, checkpoints=None, heard=None):
    report = (lambda done, total: None) if heard is None else (lambda *said: heard.append(said))
    return feature_training(config, federation, 0).with_features(checkpoints, report)


def test_features_and_predictions_of_fedavg_by_hand(config, raw):
    """A linear MLP by the formulas, with the parameters that FedAvg ends with."""
    heard = []
    federation = learned(config, raw, heard=heard)
    assert heard == [(done, 6) for done in range(1, 7)]
    training = labeled_part(raw)
    algorithm = make_algorithm(config, "fedavg", training)
    key = jax.random.fold_in(jax.random.key(config.seed), 2**32 - 1)
    state = algorithm.init(jax.random.fold_in(key, 0), training)
    for number in range(1, 7):
        state, _ = algorithm.round(state, training.cohort(), jax.random.fold_in(key, number))
    weights = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(state.model)]
    (hidden,) = [w for w in weights if w.shape == (64, 8)]
    (head,) = [w for w in weights if w.shape == (8, 10)]
    (bias,) = [w for w in weights if w.shape == (8,)]
    (offset,) = [w for w in weights if w.shape == (10,)]
    mean, deviation = training.normalization
    x = ((raw.x - mean) / deviation).reshape(len(raw.x), 64)
    features = x @ hidden + bias
    np.testing.assert_allclose(federation.x, features, rtol=1e-3, atol=1e-4)
    logits = features @ head + offset
    assert np.mean(federation.predicted == logits.argmax(axis=1)) > 0.99
    assert np.mean(federation.predicted == raw.y) > 0.4


def test_training_sees_labeled_examples_only(config, raw):
    hidden = np.concatenate([*raw.partition.unlabeled, *raw.partition.new])
    x, y = raw.x.copy(), raw.y.copy()
    x[hidden], y[hidden] = 100.0, 9 - y[hidden]
    other = learned(config, dataclasses.replace(raw, x=x, y=y))
    labeled = np.concatenate(raw.partition.labeled)
    np.testing.assert_array_equal(other.x[labeled], learned(config, raw).x[labeled])


def test_stopped_and_resumed_equals_uninterrupted(config, raw, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, total):
        if done == 5:
            raise Stop

    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Stop):
        feature_training(config, raw, 0).with_features(checkpoints, stop)
    heard = []
    assert checkpoints.latest().progress == {"round": 4}
    resumed = learned(config, raw, checkpoints, heard)
    assert heard == [(5, 6), (6, 6)]
    np.testing.assert_array_equal(resumed.x, learned(config, raw).x)

    # Without rounds of its own, the features of that model.
    given = [f"training.initial_model={tmp_path}", "preprocessing.rounds=0"]
    kept = learned(file.load(CONFIG, [*SMALL, *given]), raw)
    np.testing.assert_array_equal(kept.x, resumed.x)


def test_diverged_training_is_named(raw):
    config = file.load(CONFIG, [*SMALL, "training.learning_rate=1e30"])
    heard = []
    found = r"learning_rate=1e\+30: .* the loss of round (\d) is not finite; training diverged"
    with pytest.raises(UsageError, match=found) as error:
        learned(config, raw, heard=heard)
    # It goes no further, and the round that it names is the one.
    diverged_in = int(re.search(found, str(error.value))[1])
    assert heard == [(done, 6) for done in range(1, diverged_in)]
    assert diverged_in < 6
    made = feature_training(file.load(CONFIG, [*SMALL, "preprocessing.rounds=0"]), raw, 0)
    infinite = made.model._replace(features=lambda state, x: jnp.full((len(x), 8), jnp.inf))
    with pytest.raises(UsageError, match="the model's features are not finite"):
        dataclasses.replace(made, model=infinite).with_features(None, print)
