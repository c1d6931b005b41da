"""The training specification: defaults of its parts, sources of labels, and clients' weights in the mean."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxfed
from jaxfed import xclp
from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file
from jaxfed.config.assembly import Ingredients
from jaxfed.config.data.simulation import Simulation
from jaxfed.federation.method import completed, declared, method
from jaxfed.training.aggregate import WEIGHTINGS
from jaxfed.training.pseudo_labels.pseudo_label import labeled_only
from jaxfed.training.specification import PSEUDO_LABELS

MODEL = jaxfed.from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,))
BATCHES = jaxfed.Batches("joint", size=4, epochs=2)
TRAINED = [n for n, f in ALGORITHMS.items() if "training" in declared(f).takes]
# Equal weights; all others weigh clients by their examples, as McMahan et al. do.
UNIFORM = {
    *("fedavg_xclp", "fedavg_xclp_prototypes", "fedavg_per_client_lp", "fedavg_network"),  # A.2
    *("fedprox", "scaffold", "feddyn", "fedrep", "fedmatch", "fedrgd", "semifl", "fedcon"),
    *("fedsiam", "fedirm", "fedbuff"),
}


def training(**server):
    return jaxfed.Training(MODEL, server=jaxfed.ServerTraining(**server))


def test_parts_take_what_they_lack_from_each_other():
    made = jaxfed.Training(MODEL, local=jaxfed.LocalTraining(batches=BATCHES))
    assert made.local.labeled_batches is made.server.batches is BATCHES
    given = jaxfed.Batches("joint", size=5, epochs=1)
    assert made.with_server(batches=given).server.batches is given
    assert made.execution.map_labeling is made.execution.map_clients


def test_a_method_sees_defaults_of_what_it_does_not_read_and_its_papers_weights():
    given = training().with_local(strong_augment=len).with_server(weighting=np.size)
    read = given.read_by(("strong_augment",), "uniform")
    assert (read.local.strong_augment, read.server.weighting) == (None, np.size)
    assert given.read_by(("weighting",), "uniform").server.weighting is WEIGHTINGS["uniform"]


def test_sources_of_labels_are_those_of_the_model_and_made_once():
    asked = []

    def labels(model, execution):
        asked.append(model)
        return {"none": labeled_only}

    made = jaxfed.Training(MODEL, labels=labels)
    assert made.pseudo_labels is made.pseudo_labels
    other = dataclasses.replace(made, model=MODEL._replace(by_example=True))
    assert set(other.pseudo_labels) == {"none"}
    assert asked == [made.model, other.model]


def test_a_source_has_the_number_of_classes(monkeypatch):
    seen = []
    monkeypatch.setitem(PSEUDO_LABELS, "own", lambda parts: seen.append(parts) or labeled_only)
    for given in ({"num_classes": 3}, {"own_parameters": xclp.Propagation(num_classes=3)}):
        made = jaxfed.Training(MODEL, labels=jaxfed.LabelSources(**given))
        assert made.pseudo_labels["own"]
    assert [parts.num_classes for parts in seen] == [3, 3]


def test_weights_of_clients_may_be_zero():
    x, y = np.ones((15, 4), np.float32), np.arange(15) % 3
    federation = jaxfed.Federation.from_clients([(x, y), (x, y)], num_classes=3)
    nobody = training(weighting=lambda data: jnp.float32(0))
    found = jaxfed.simulate(jaxfed.algorithms.fedavg(training=nobody), federation)
    assert found.records[-1]["clients"] == 0


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_has_the_mean_of_its_paper(name):
    factory = ALGORITHMS[name]
    weighting = declared(factory).of(completed(factory, {})).weighting
    assert weighting == ("uniform" if name in UNIFORM else None)
    given = training(weighting=weighting and WEIGHTINGS[weighting])
    assert given.server.weigh is WEIGHTINGS[weighting or "examples"]


def test_a_training_without_a_weighting_gets_the_methods_and_no_other():
    @method(pseudo_label="none", weighting=lambda given: "cohort" if given.alike else "uniform")
    def mine(*, training, alike=True):
        return training.server.weighting

    assert mine(training=training()) is WEIGHTINGS["cohort"]
    assert mine(training=training(), alike=False) is WEIGHTINGS["uniform"]
    own = WEIGHTINGS["examples"]
    assert mine(training=training(weighting=own)) is own
    assert set(TRAINED) >= UNIFORM
    config = file.load("ml_collections_configs/xclp_digits.py", ["model.hidden=(4,)"])
    assert config.training.weighting == "method"
    of_config = Ingredients(config, Simulation(config).federation(0)).training()
    assert of_config.server.weighting is training().server.weighting is None
