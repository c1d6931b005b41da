"""`simulate`: the loop's own numbers, on clients from one's own arrays."""

import numpy as np
import pytest

import jaxfed
from jaxfed.api.run import run
from jaxfed.config import file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.experiment.run.simulate import simulate
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import with_attributes
from jaxfed.models import from_flax

from flax import nnx  # isort: skip

OVERRIDES = (
    *("dataset.validation_fraction=0.1", "evaluate_every=2", "baselines=()"),
    *("dataset.train_size=400", "model.hidden=(16,)", "execution.plots=false"),
)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((90, 4)).astype(np.float32)
Y = (X @ RNG.standard_normal((4, 3))).argmax(axis=1)


def clients_of(num, labeled=30):
    parts = np.array_split(np.arange(60), num)
    return [(X[p], np.where(np.arange(len(p)) < labeled, Y[p], -1)) for p in parts]


@pytest.mark.parametrize(
    ("config", "algorithm"),
    [
        ("fedavg_xclp:smoke", "fedavg"),
        pytest.param("xclp_digits:smoke", "xclp", marks=pytest.mark.slow),
    ],
)
def test_it_gives_the_numbers_of_an_experiment(config, algorithm):
    settings = file.load(config, [*OVERRIDES, f"algorithm={algorithm}", "num_repeats=1"])
    result = run(settings, progress=False)
    federation = Simulation(settings).federation(settings.seed)
    simulated = simulate(
        make_algorithm(settings, algorithm, federation),
        federation,
        rounds=settings.rounds,
        cohort_size=settings.cohort_size,
        sampling=settings.sampling,
        seed=settings.seed,
        evaluate_every=settings.evaluate_every,
    )
    final = result.summary["algorithms"][algorithm]
    assert simulated.metrics["test_accuracy"] == final["test_accuracy"]["values"][0]
    told = simulated.predictions()
    assert told.label.tolist() == list(np.asarray(result.predictions(algorithm)["label"]))


def test_fedavg_on_own_arrays():
    test = X[60:], Y[60:]
    federation = jaxfed.Federation.from_clients(clients_of(4), test=test, validation=test)
    training = jaxfed.Training(from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,)))
    seen = []
    result = simulate(
        jaxfed.algorithms.fedavg(training=training),
        federation,
        rounds=40,
        cohort_size=2,
        evaluate_every=10,
        on_round=seen.append,
    )
    assert result.metrics["test_accuracy"] > 0.7
    assert f"{result.metrics['test_accuracy']:.4f}" in repr(result)
    assert result.records == seen
    assert [r["round"] for r in seen if "validation_accuracy" in r] == [0, 10, 20, 30, 40]
    probability = result.predict(test[0])
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-5)
    assert np.mean(probability.argmax(axis=1) == test[1]) == result.metrics["test_accuracy"]


def test_what_pseudo_labels_start_from_is_a_candidate():
    """As in an experiment: of validation 0.1, 0.2, 0.9, 0.3 ... the state after round 2 is reported."""
    qualities = [0.1, 0.2, 0.9, 0.3, 0.3, 0.3]
    method = FederatedAlgorithm(
        lambda key, federation: np.int32(0),
        with_attributes(lambda state, cohort, key: (state + 1, {}), stage_1=2),
        evaluate=lambda state, federation: {"test_accuracy": qualities[state]},
        validate=lambda state, federation: {"validation_accuracy": qualities[state]},
    )
    found = simulate(method, jaxfed.Federation.from_clients(clients_of(2)), rounds=5)
    assert [r["round"] for r in found.records if "validation_accuracy" in r] == [0, 2, 5]
    assert (found.state, found.last_state, found.metrics["test_accuracy"]) == (2, 5, 0.9)


def test_rounds_are_evaluated_on_request():
    training = jaxfed.Training(from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,)))
    fedavg = jaxfed.algorithms.fedavg(training=training)
    clients, test = clients_of(2), (X[60:], Y[60:])
    alone = jaxfed.Federation.from_clients(clients, test=test)
    options = {"rounds": 4, "evaluate_every": 2}
    curve = simulate(fedavg, alone, evaluate_test=True, **options)
    seen = [r["round"] for r in curve.records if "round_test_accuracy" in r]
    assert seen == [0, 2, 4]
    assert curve.records[-1]["round_test_accuracy"] == curve.metrics["test_accuracy"]
    validated = jaxfed.Federation.from_clients(clients, test=test, validation=test)
    both = simulate(fedavg, validated, evaluate_test=True, **options)
    for record in (r for r in both.records if "validation_accuracy" in r):
        assert record["round_test_accuracy"] == record["validation_accuracy"]
    assert len(both.records) == 5
    tree = jaxfed.learners.LEARNERS["decision_tree"](num_classes=3)
    trees = jaxfed.algorithms.local_learning(num_classes=3, learner=tree)  # no model before round 1
    of_trees = simulate(trees, alone, evaluate_test=True, **options).records
    assert [r["round"] for r in of_trees if "round_test_accuracy" in r] == [2, 4]
