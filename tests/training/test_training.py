"""The training specification: defaults of its four parts, and mistakes in giving them."""

import dataclasses

import numpy as np
import optax
import pytest
from flax import nnx

import jaxfed
from jaxfed.config.schema.training import PSEUDO_LABEL, TRAINING
from jaxfed.models import from_flax
from jaxfed.training.pseudo_labels.pseudo_label import labeled_only

MODEL = from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,))
BATCHES = jaxfed.Batches("joint", size=4, epochs=2)


def test_parts_take_what_they_lack_from_each_other():
    training = jaxfed.Training(MODEL, local=jaxfed.LocalTraining(batches=BATCHES))
    assert training.local.labeled_batches is training.server.batches is BATCHES
    given = jaxfed.Batches("joint", size=5, epochs=1)
    of_server = jaxfed.ServerTraining(batches=given)
    assert dataclasses.replace(training, server=of_server).server.batches is given
    execution = training.execution
    assert execution.map_labeling is execution.map_clients


def test_one_field_of_a_part_is_changed_at_a_time():
    plain = jaxfed.Training(MODEL, labeled_only_rounds=2)
    changed = plain.with_local(optimizer=optax.adam).with_server(weighting=np.size)
    assert (changed.local.optimizer, changed.server.weighting) == (optax.adam, np.size)
    assert (changed.labeled_only_rounds, changed.local.batches) == (2, plain.local.batches)
    assert changed.labels is plain.labels


def test_sources_of_labels_are_those_of_the_model_and_made_once():
    asked = []

    def labels(model, execution):
        asked.append(model)
        return {"none": labeled_only()}

    training = jaxfed.Training(MODEL, labels=labels)
    assert training.pseudo_labels is training.pseudo_labels
    other = dataclasses.replace(training, model=MODEL._replace(by_example=True))
    assert set(other.pseudo_labels) == {"none"}
    assert asked == [training.model, other.model]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "adam"}, "optimizer='adam': use a function such as optax.adam"),
        ({"learning_rate": 0.1}, "learning_rate=0.1: use a schedule such as optax.constant_sch"),
        ({"batches": "joint"}, "batches='joint': use Batches"),
        ({"learning_rate": lambda t: 0.1 if t < 3 else 0.01}, r"learning_rate=.*use a schedule of"),
        ({"learning_rate": lambda t: "fast"}, r"learning_rate=.*gives no rate.*use a schedule"),
        ({"labeled_batches": 32}, "labeled_batches=32: use Batches"),
        ({"client_optimizer": "keep"}, "client_optimizer='keep': choose one of 'fresh', 'kept'"),
        ({"batch_statistics": "off"}, "batch_statistics='off': choose one of 'averaged', 'local'"),
        ({"pointwise": "mse"}, "pointwise='mse': use a function"),
        ({"augment": "flip"}, "augment='flip': use a function"),
        ({"strong_augment": ("flip",)}, r"strong_augment=\('flip',\): use a function"),
    ],
)
def test_a_name_or_number_in_place_of_a_function_is_one_line(given, message):
    with pytest.raises(jaxfed.UsageError, match=f"^LocalTraining.{message}"):
        jaxfed.LocalTraining(**given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jaxfed.Batches("mixed", 4, 1), "Batches.scheme='mixed': choose one of 'joint',"),
        (lambda: jaxfed.Batches("joint", 0, 1), "Batches.size=0: use integers from 1 on"),
        (lambda: jaxfed.Batches("joint", 2.5, 1), "Batches.size=2.5: use integers"),
        (lambda: jaxfed.Batches("joint", 4, 0), "Batches.epochs=0: use integers from 1 on"),
        (lambda: jaxfed.Batches("joint", 4, 1, -1), "Batches.steps=-1: use integers from 0"),
        (
            lambda: jaxfed.ServerTraining(aggregate=optax.sgd(1.0)),
            r"ServerTraining.aggregate=.*: use an Aggregate, such as server_optimizer\(",
        ),
        (
            lambda: jaxfed.ServerTraining(weighting="uniform"),
            "ServerTraining.weighting='uniform': use a function",
        ),
        (lambda: jaxfed.ServerTraining(examples=np.zeros(3)), "ServerTraining.examples=.*a pair"),
        (lambda: jaxfed.ServerTraining(batches=3), "ServerTraining.batches=3: use Batches"),
        (
            lambda: jaxfed.LabelSources(confidence="high"),
            "LabelSources.confidence='high': choose one of 'softmax'",
        ),
        (
            lambda: jaxfed.LabelSources(xclp_parameters={"num_classes": 3}),
            r"LabelSources.xclp_parameters=.*: use jaxfed.xclp.Parameters\(num_classes",
        ),
        (lambda: jaxfed.LabelSources(validation=np.zeros(3)), "LabelSources.validation=.*a pair"),
        (
            lambda: jaxfed.ClientExecution(map_clients="vmap"),
            r"ClientExecution.map_clients='vmap': use partial\(client_map",
        ),
        (
            lambda: jaxfed.ClientExecution(clients_multiple=0),
            "ClientExecution.clients_multiple=0: use integers from 1 on",
        ),
        (lambda: jaxfed.ClientExecution(host=3), r"ClientExecution.host=3: use a .*Execution"),
        (lambda: jaxfed.algorithms.fedavg(training=MODEL), r"fedavg: training is a Model; use "),
    ],
)
def test_another_value_in_a_part_is_one_line(make, message):
    with pytest.raises(jaxfed.UsageError, match=f"^{message}"):
        make()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": optax.adam}, r"optimizer: .* use local=LocalTraining\(optimizer=\.\.\.\)"),
        ({"batches": BATCHES}, r"batches: .* use local=LocalTraining\(batches=\.\.\.\)"),
        ({"weighting": np.size}, r"weighting: .* use server=ServerTraining\(weighting=\.\.\.\)"),
        ({"clients_multiple": 2}, r"use execution=ClientExecution\(clients_multiple=\.\.\.\)"),
        ({"pseudo_labels": {}}, "pseudo_labels: .* use labels="),
        ({"num_classes": 3}, r"use protofssl\(task=PrototypeTask\(num_classes=\.\.\.\)\)"),
        ({"server": (1, 2)}, r"server is a tuple; use server=ServerTraining\(\.\.\.\)"),
        ({"labels": "xclp"}, r"labels='xclp': use LabelSources\(\.\.\.\)"),
        ({"labeled_only_rounds": -1}, "labeled_only_rounds=-1: use integers from 0 on"),
        ({"training_cohort_size": 1.5}, "training_cohort_size=1.5: use integers from 0 on"),
        ({"initial_model": {"w": 1}}, "initial_model={'w': 1}: use a state of the model"),
    ],
)
def test_fields_of_parts_and_other_values_are_refused(given, message):
    with pytest.raises(jaxfed.UsageError, match=f"Training.*{message}"):
        jaxfed.Training(MODEL, **given)


def test_configs_have_the_defaults_of_the_library():
    """But for batches and weights, which are those of XCLP's experiments."""
    training = jaxfed.Training(MODEL)
    assert TRAINING["training.learning_rate"].default == training.local.learning_rate(0)
    for key in ("client_optimizer", "batch_statistics"):
        assert TRAINING[f"training.{key}"].default == getattr(training.local, key)
    for key in ("confidence", "class_weights"):
        assert PSEUDO_LABEL[f"pseudo_label.{key}"].default == getattr(training.labels, key)


def test_two_views_need_a_strong_augmentation_and_other_methods_refuse_one():
    words = r"^LocalTraining\.strong_augment=None: 'fixmatch' compares two views .*; give a strong"
    with pytest.raises(jaxfed.UsageError, match=words):
        jaxfed.algorithms.fixmatch(training=jaxfed.Training(MODEL))
    strong = jaxfed.Training(MODEL).with_local(strong_augment=lambda key, x: x)
    jaxfed.algorithms.fixmatch(training=strong)
    words = r"^LocalTraining\.strong_augment: 'fedavg' does not read it; leave it out$"
    with pytest.raises(jaxfed.UsageError, match=words):
        jaxfed.algorithms.fedavg(training=strong)
