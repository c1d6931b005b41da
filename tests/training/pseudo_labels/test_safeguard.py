"""Inferred labels stay where they are right more often than the network: by hand, and through a cohort."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed import xclp
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.client_map import client_map
from jaxfed.models.mlp import mlp
from jaxfed.training.client_execution import ClientExecution
from jaxfed.training.pseudo_labels import pseudo_label
from jaxfed.training.pseudo_labels.label_sources import LabelSources
from jaxfed.training.pseudo_labels.safeguard import NUM_BINS, measured, surer_than_network
from jaxfed.training.server.server_state import ServerState

KEY = jax.random.key(3)
map_clients = partial(client_map, strategy="map")
EXECUTION = ClientExecution(map_clients)


@pytest.fixture(scope="module")
def model():
    return mlp((5,), 3, hidden=(6,))


@pytest.fixture(scope="module")
def state(model):
    return ServerState(model.init(KEY), (), (), (), (), (), jnp.int32(0))


@pytest.fixture(scope="module")
def cohort():
    """Clients of 9, 14 and 0 examples, the last one padding."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 16, 5)).astype(np.float32)
    y = np.full((3, 16), -1, np.int32)
    y[0, :4], y[1, :6] = rng.integers(0, 3, 4), rng.integers(0, 3, 6)
    mask = np.arange(16) < np.array([9, 14, 0])[:, None]
    return Cohort(np.array([2, 5, -1], np.int32), x, y, mask)


def validation_of(model, state, *, right_above):
    """Examples, and labels that the network hits exactly where its confidence is above this quantile."""
    x = np.random.default_rng(1).standard_normal((200, 5)).astype(np.float32)
    share = jax.nn.softmax(model.head(state.model, model.features(state.model, x)))
    confidence, label = np.asarray(share.max(axis=1)), np.asarray(share.argmax(axis=1))
    is_right = confidence >= np.sort(confidence)[int(200 * right_above)]
    return x, np.where(is_right, label, (label + 1) % 3).astype(np.int32)


def constant(weight):
    """A source that gives class 1 with this weight to everything."""

    def source(state, cohort, key, communication):
        del state, key, communication
        everything = np.ones(cohort.y.shape, np.int32)
        return pseudo_label.completed(cohort, everything, weight * everything.astype(np.float32))

    return source


def test_rates_are_hits_in_bins_of_equal_mass():
    rng = np.random.default_rng(0)
    confidence = rng.random(1000).astype(np.float32)
    is_right = rng.random(1000) < confidence
    rates = measured(confidence, is_right)
    by_bin = is_right[np.argsort(confidence)].reshape(NUM_BINS, 100).mean(axis=1)
    np.testing.assert_allclose(rates.rate, by_bin, atol=1e-6)
    number = np.argsort(np.argsort(confidence)) // 100
    np.testing.assert_allclose(rates.at(confidence), by_bin[number], atol=1e-6)


@pytest.mark.parametrize(
    ("confidence", "is_right", "asked", "expected"),
    [
        ([0.5] * 8, [1, 1, 0, 0, 1, 1, 1, 1], [0.1, 0.5, 0.9], [0.75, 0.75, 0.75]),
        ([0.4, 0.8], [0, 1], [0.4, 0.6, 0.8, 1.0], [0, 0, 1, 1]),
        ([0.7], [1], [0.1, 0.7], [1, 1]),
    ],
)
def test_few_examples_and_equal_confidences(confidence, is_right, asked, expected):
    rates = measured(np.array(confidence, np.float32), np.array(is_right, bool))
    np.testing.assert_array_equal(rates.at(np.array(asked, np.float32)), np.float32(expected))


def test_labels_stay_where_they_beat_the_network(model, state, cohort):
    """Right in the upper half of its confidences only, the network keeps those from a label of weight 0.5."""
    validation = validation_of(model, state, right_above=0.5)
    embed = pseudo_label.embedding(model, map_clients)
    communication = Communication()
    source = surer_than_network(constant(0.5), model, embed, validation)
    labels = source(state, cohort, KEY, communication)

    share = jax.nn.softmax(model.head(state.model, embed(state, cohort, KEY)))
    xs = validation[0]
    own = np.asarray(jax.nn.softmax(model.head(state.model, model.features(state.model, xs))))
    median = np.sort(own.max(axis=1))[100]
    inferred = cohort.mask & (cohort.y < 0)
    stays = inferred & (np.asarray(share.max(axis=-1)) < median)
    assert 0 < stays.sum() < inferred.sum()  # both happen
    np.testing.assert_array_equal(np.asarray(labels.label) == 1, stays | (cohort.y == 1))
    np.testing.assert_array_equal(
        np.asarray(labels.weight), np.where(cohort.y >= 0, 1, np.where(stays, 0.5, 0))
    )
    assert float(labels.metrics["withheld"]) == pytest.approx(1 - stays.sum() / inferred.sum())
    assert float(labels.metrics["pseudo_labeled"]) == pytest.approx(stays.sum() / inferred.sum())
    assert communication.download == {"network_rates": 2 * (2 * NUM_BINS - 1) * 4}
    assert not communication.upload


@pytest.mark.parametrize(("right_above", "stays"), [(0.0, False), (0.999999, True)])
def test_a_network_that_is_always_right_keeps_all_and_one_that_never_is_none(
    model, state, cohort, right_above, stays
):
    """Even from labels that are certain: as often right is not more often."""
    x, y = validation_of(model, state, right_above=right_above)
    if stays:
        y = (y + (y == validation_of(model, state, right_above=0.0)[1])) % 3  # never right
    embed = pseudo_label.embedding(model, map_clients)
    labels = surer_than_network(constant(1.0), model, embed, (x, y))(
        state, cohort, KEY, Communication()
    )
    inferred = cohort.mask & (cohort.y < 0)
    assert (np.asarray(labels.label)[inferred] == (1 if stays else -1)).all()
    assert (np.asarray(labels.label)[cohort.y >= 0] == cohort.y[cohort.y >= 0]).all()


def test_where_all_labels_are_given_none_is_withheld(model, state, cohort):
    given = cohort._replace(y=np.where(cohort.mask, 1, -1).astype(np.int32))
    embed = pseudo_label.embedding(model, map_clients)
    validation = validation_of(model, state, right_above=0.0)
    source = surer_than_network(constant(0.5), model, embed, validation)
    labels = source(state, given, KEY, Communication())
    np.testing.assert_array_equal(labels.label, given.y)
    assert labels.metrics["withheld"] == 0


def test_a_network_of_few_bits_is_as_sure_as_its_logits_say(model, state, cohort):
    """Of 8 and 9 over two zeros both are 1 in bfloat16, and it is right where it has 9."""
    coarse = model._replace(
        features=lambda state, x: x, head=lambda state, x: x.astype(jnp.bfloat16)
    )
    is_surer = np.arange(40) % 2 == 1
    logits = np.where(is_surer, 9.0, 8.0)[:, None] * np.float32([1, 0, 0])
    validation = logits.astype(np.float32), np.where(is_surer, 0, 2)
    x = np.zeros((3, 16, 3), np.float32)
    x[..., 0] = np.where(np.arange(16) % 2 == 1, 9.0, 8.0)
    source = surer_than_network(constant(0.9), coarse, lambda *_: jnp.asarray(x), validation)
    labels = source(state, cohort, KEY, Communication())
    stays = (cohort.mask & (cohort.y < 0))[:, ::2]
    assert stays.any()
    np.testing.assert_array_equal(np.asarray(labels.label)[:, ::2][stays], 1)
    withheld = (cohort.mask & (cohort.y < 0))[:, 1::2]
    np.testing.assert_array_equal(np.asarray(labels.label)[:, 1::2][withheld], -1)


@pytest.mark.slow
def test_weights_of_classes_have_no_say_in_what_stays(model, state, cohort):
    """They are no probabilities; what they multiply is what has stayed."""
    parameters = xclp.Parameters(
        num_classes=3, num_bits=128, num_neighbors=4, confidence="calibrated"
    )
    x, y = validation_of(model, state, right_above=0.0)
    y = np.where(np.random.default_rng(0).random(len(y)) < 0.6, y, (y + 1) % 3)
    found = []
    for class_weights in (False, True):
        sources = LabelSources(
            class_weights=class_weights,
            xclp_parameters=parameters,
            validation=(x, y),
        )(model, EXECUTION)
        found.append(sources["xclp"](state, cohort, KEY, Communication()))
    plain, weighted = found
    np.testing.assert_array_equal(plain.label, weighted.label)
    assert not np.allclose(plain.weight, weighted.weight)


@pytest.mark.parametrize("confidence", ["entropy", "calibrated"])
def test_only_probabilities_are_held_against_the_network(model, state, cohort, confidence):
    parameters = xclp.Parameters(
        num_classes=3, num_bits=128, num_neighbors=4, confidence=confidence
    )
    sources = LabelSources(
        xclp_parameters=parameters,
        validation=validation_of(model, state, right_above=0.0),
    )(model, EXECUTION)
    labels = sources["xclp"](state, cohort, KEY, Communication())
    inferred = cohort.mask & (cohort.y < 0)
    kept = np.asarray(labels.label)[inferred] >= 0
    assert ("withheld" in labels.metrics) == (confidence == "calibrated")
    assert kept.all() == (confidence == "entropy")
