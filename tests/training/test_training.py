"""The training specification: defaults of its four parts, and mistakes in giving them."""

import dataclasses

import numpy as np
import optax
from flax import nnx

import jaxfed
from jaxfed.models import from_flax
from jaxfed.training.aggregate import WEIGHTINGS
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


def test_a_method_sees_defaults_of_what_it_does_not_read_and_its_papers_weights():
    given = jaxfed.Training(MODEL).with_local(strong_augment=len).with_server(weighting=np.size)
    read = given.read_by(("strong_augment",), "uniform")
    assert (read.local.strong_augment, read.server.weighting) == (None, np.size)
    assert given.read_by(("weighting",), "uniform").server.weighting is WEIGHTINGS["uniform"]


def test_sources_of_labels_are_those_of_the_model_and_made_once():
    asked = []

    def labels(model, execution):
        asked.append(model)
        return {"none": labeled_only}

    training = jaxfed.Training(MODEL, labels=labels)
    assert training.pseudo_labels is training.pseudo_labels
    other = dataclasses.replace(training, model=MODEL._replace(by_example=True))
    assert set(other.pseudo_labels) == {"none"}
    assert asked == [training.model, other.model]
