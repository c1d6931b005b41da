"""Labels of a padded cohort against Algorithm 1 on lists, and against formulas by hand."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed import xclp
from jaxfed.algorithms.fedsem import Teacher
from jaxfed.algorithms.per_client_lp import per_client_lp
from jaxfed.federation.cohort import Cohort, stacked
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import HERE, Execution, client_map
from jaxfed.kernels import knn
from jaxfed.kernels.devices import mesh_of
from jaxfed.models.mlp import mlp
from jaxfed.training.pseudo_labels import propagated_labels, pseudo_label
from jaxfed.training.pseudo_labels.propagated_labels import all_examples
from jaxfed.training.pseudo_labels.pseudo_label import embedding
from jaxfed.training.server_state import ServerState
from jaxfed.xclp.settings.parameters import HAMMING
from jaxfed.xclp.steps.hamming import plaintext_hamming

KEY = jax.random.key(5)
PARAMETERS = xclp.Parameters(num_classes=3, num_bits=128, num_neighbors=4)
map_clients = partial(client_map, strategy="map")


def state_of(model):
    return ServerState(model.init(KEY), (), (), (), (), jnp.int32(0))


@pytest.fixture(scope="module")
def model():
    return mlp((5,), 3, hidden=(6,))


@pytest.fixture(scope="module")
def cohort():
    """Clients of 9, 14 and 0 examples, some labeled; rubbish on the padding."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 16, 5)).astype(np.float32)
    y = np.full((3, 16), -1, np.int32)
    y[0, :4], y[1, :6] = rng.integers(0, 3, 4), rng.integers(0, 3, 6)
    mask = np.arange(16) < np.array([9, 14, 0])[:, None]
    x[~mask] = 1e3
    return Cohort(np.array([2, 5, 7], np.int32), x, y, mask)


def check_given(labels, cohort):
    """Given labels stand with weight 1; nothing on padding; no weight without a label."""
    label, weight = np.asarray(labels.label), np.asarray(labels.weight)
    given = cohort.y >= 0
    np.testing.assert_array_equal(label[given], cohort.y[given])
    assert (weight[given] == 1).all()
    assert (label[~cohort.mask] == -1).all()
    assert (weight[label < 0] == 0).all()
    assert ((weight >= 0) & (weight <= 1)).all()
    assert label.dtype == np.int32
    assert weight.dtype == np.float32


def expected_xclp(features, cohort, parameters):
    """Labels and confidences by `jaxfed.xclp` on each client's own rows."""
    seed = xclp.drawn_seed(KEY)
    rows = range(len(cohort.mask))
    return xclp.cross_client_label_propagation(
        [np.asarray(features[row])[cohort.mask[row]] for row in rows],
        [cohort.y[row][cohort.mask[row]] for row in rows],
        dataclasses.replace(parameters, seed=seed),
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"label_matrix": "class_balanced", "relative_confidence": True, "similarity_power": 3.0},
        {"num_neighbors": 1},
        {"confidence": "calibrated"},
    ],
    ids=str,
)
@pytest.mark.sample(1)
def test_xclp_on_a_padded_cohort_is_algorithm_1(model, cohort, settings, monkeypatch):
    parameters = dataclasses.replace(PARAMETERS, **settings)
    embed = embedding(model, map_clients)
    state = state_of(model)
    communication = Communication()
    labels = propagated_labels.XclpLabels(all_examples(embed), parameters)(
        state, cohort, KEY, communication
    )
    check_given(labels, cohort)
    result = expected_xclp(embed(state, cohort, KEY), cohort, parameters)
    for row, prediction in enumerate(result.predictions):
        own, open_ = cohort.mask[row], cohort.y[row][cohort.mask[row]] < 0
        np.testing.assert_array_equal(
            np.asarray(labels.label[row])[own][open_], prediction.labels[open_]
        )
        np.testing.assert_allclose(
            np.asarray(labels.weight[row])[own][open_], prediction.confidences[open_], atol=2e-4
        )
    upload = result.communication.upload
    assert communication.upload["codes"] == upload["codes"]
    if parameters.label_matrix == "class_balanced":  # two of three clients send
        assert 3 * communication.upload["class_counts"] == 2 * upload["class_counts"]

    if {"confidence", "relative_confidence"} & settings.keys():
        return  # protocols refuse these
    # A protocol on the host labels the same.
    monkeypatch.setitem(HAMMING, "host", plaintext_hamming)
    host = dataclasses.replace(parameters, hamming="host")
    on_host = propagated_labels.XclpLabels(all_examples(embed), host)
    other = on_host(state, cohort, KEY, Communication())
    np.testing.assert_array_equal(other.label, labels.label)
    np.testing.assert_allclose(other.weight, labels.weight, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("is_ragged", [False, True], ids=["padded", "ragged"])
@pytest.mark.parametrize("settings", [{}, {"num_neighbors": 1}], ids=str)
def test_a_graph_over_two_devices_labels_as_on_one(model, cohort, settings, is_ragged, monkeypatch):
    """As on a padded cohort, too: rows of nobody have no label."""
    odd = Cohort(cohort.client_id, cohort.x[:, :15], cohort.y[:, :15], cohort.mask[:, :15])
    padded = odd
    if is_ragged:
        own = [x[mask] for x, mask in zip(odd.x, odd.mask, strict=True)]
        odd = odd._replace(x=stacked(own, 256, 15))
    parameters = dataclasses.replace(PARAMETERS, **settings)
    points = all_examples(embedding(model, map_clients))
    seen, search = [], knn.hamming_knn

    def watched(codes, *arguments, **keywords):
        seen.append(mesh_of(codes))
        return search(codes, *arguments, **keywords)

    monkeypatch.setattr(knn, "hamming_knn", watched)
    alone = propagated_labels.XclpLabels(points, parameters)(
        state_of(model), padded, KEY, Communication()
    )
    found = []
    for execution in (HERE, Execution(num_devices=2)):
        label = propagated_labels.XclpLabels(points, parameters, execution)
        found += [label(state_of(model), odd, KEY, Communication()) for _ in range(2)]
    assert [mesh and mesh.size for mesh in seen[-3:]] == [None, 2, 2]  # on one device compiled once
    for other in found:
        np.testing.assert_array_equal(other.label, alone.label)
        np.testing.assert_allclose(other.weight, alone.weight, atol=2e-4)
        assert other.metrics["steps"] > 0


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"label_matrix": "class_balanced", "relative_confidence": True},
        {"confidence": "calibrated"},
    ],
    ids=str,
)
@pytest.mark.sample(1)
def test_per_client_lp_is_the_one_shot_method_on_features(model, cohort, switches):
    embed = embedding(model, map_clients)
    state = state_of(model)
    parameters = dataclasses.replace(PARAMETERS, **switches)
    labels = propagated_labels.per_client_lp_labels(embed, parameters, map_clients)(
        state, cohort, KEY, Communication()
    )
    check_given(labels, cohort)
    features = np.asarray(embed(state, cohort, KEY))
    algorithm = per_client_lp(num_classes=3, num_neighbors=4, **switches)
    federation = SimpleNamespace(num_clients=8, capacity=16, server=())
    one_shot, _ = algorithm.round(algorithm.init(KEY, federation), cohort._replace(x=features), KEY)
    open_ = cohort.mask & (cohort.y < 0)
    np.testing.assert_array_equal(
        np.asarray(labels.label)[open_], one_shot.label[cohort.client_id][open_]
    )
    np.testing.assert_allclose(
        np.asarray(labels.weight)[open_],
        one_shot.confidence[cohort.client_id][open_],
        atol=2e-4,
    )


def test_network_labels_by_hand(model, cohort):
    embed = embedding(model, map_clients)
    state = state_of(model)
    labels = pseudo_label.network_labels(model, embed)(state, cohort, KEY, Communication())
    check_given(labels, cohort)
    open_ = cohort.mask & (cohort.y < 0)
    logits = np.asarray(model.apply(state.model, cohort.x[open_]), np.float64)
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    confidence = 1 + (share * np.log(share)).sum(axis=1) / np.log(3)
    np.testing.assert_array_equal(np.asarray(labels.label)[open_], logits.argmax(axis=1))
    np.testing.assert_allclose(np.asarray(labels.weight)[open_], confidence, atol=1e-5)

    released = pseudo_label.network_labels(model, embed, confidence="logits")
    weight = np.asarray(released(state, cohort, KEY, Communication()).weight)[open_]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = logits / logits.sum(axis=1, keepdims=True)
        raw = 1 + (share * np.log(share)).sum(axis=1) / np.log(3)
    expected = np.where(np.isfinite(raw), raw, 0)
    assert (expected == 0).any()
    np.testing.assert_allclose(weight, expected, atol=1e-5)


def test_a_clients_labels_of_the_teacher_never_change(model, cohort):
    """Not even those of examples that are augmented anew, and whoever else takes part."""

    def shift(key, x):
        return x + jax.random.normal(key, x.shape)

    embed = embedding(model, map_clients, augment=shift)
    source = pseudo_label.from_teacher(pseudo_label.network_labels(model, embed))
    teacher = Teacher(model.init(KEY), jax.random.key(10), np.zeros(8, bool))
    state = state_of(model)._replace(teacher=teacher)
    first = source(state, cohort, KEY, Communication())
    others = Cohort(*(np.asarray(field)[[1, 2]] for field in cohort))
    later = source(state, others, jax.random.key(77), Communication())
    np.testing.assert_array_equal(first.weight[1], later.weight[0])
    np.testing.assert_array_equal(first.label[1], later.label[0])


def test_labeled_only_and_class_weights(cohort):
    labels = pseudo_label.labeled_only(None, cohort, KEY, Communication())
    check_given(labels, cohort)
    np.testing.assert_array_equal(labels.label, cohort.y)
    weighted = pseudo_label.class_weighted(pseudo_label.labeled_only, 3)
    weight = np.asarray(weighted(None, cohort, KEY, Communication()).weight)
    counts = np.bincount(cohort.y[cohort.y >= 0], minlength=3)
    given = cohort.y >= 0
    np.testing.assert_allclose(weight[given], (10 / 3 / counts)[cohort.y[given]], rtol=1e-6)
    assert (weight[~given] == 0).all()

    within = pseudo_label.class_weighted(pseudo_label.labeled_only, 3, within_clients=True)
    weight = np.asarray(within(None, cohort, KEY, Communication()).weight)
    for row in range(2):
        own = cohort.y[row][given[row]]
        share = len(own) / 3 / np.maximum(np.bincount(own, minlength=3), 1)
        np.testing.assert_allclose(weight[row][given[row]], share[own], rtol=1e-6)
    assert (weight[~given] == 0).all()
