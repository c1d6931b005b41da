"""`simulate`: the loop's own numbers, on clients from one's own arrays."""

import jax
import numpy as np
import pytest

import jaxfed
from jaxfed.api.run import run
from jaxfed.config import file
from jaxfed.config.build.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.experiment.run.simulate import simulate
from jaxfed.federation.algorithm import FederatedAlgorithm
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
    accuracy = result.metrics["test_accuracy"]
    assert repr(result) == f"Simulated(fedavg)\n40 rounds, 4 clients\ntest accuracy {accuracy:.4f}"
    assert result.records == seen
    assert [r["round"] for r in seen if "validation_accuracy" in r] == [0, 10, 20, 30, 40]
    probability = result.predict(test[0])
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-5)
    assert np.mean(probability.argmax(axis=1) == test[1]) == result.metrics["test_accuracy"]
    with pytest.raises(
        jaxfed.UsageError, match="predict: examples of type <U1; numbers are needed"
    ):
        result.predict(np.array([["a"] * 4]))


def test_xclp_on_own_arrays_labels_new_points_of_unknown_class():
    new = [(X[60 + 5 * i : 65 + 5 * i], np.full(5, -1)) for i in range(3)]
    federation = jaxfed.Federation.from_clients(clients_of(3, labeled=15), new=new, num_classes=3)
    result = simulate(jaxfed.algorithms.ALGORITHMS["xclp"](num_classes=3), federation)
    assert repr(result) == "Simulated(a method)\n1 round, 3 clients\nno metrics"
    told = result.predictions()
    chosen = told.role == "new"
    assert chosen.sum() == 15
    assert (told.label[chosen] >= 0).all()
    with pytest.raises(jaxfed.UsageError, match="labels the points that its clients hold"):
        result.predict(X)


def test_roles_and_rows_of_own_clients():
    federation = jaxfed.Federation.from_clients(
        [(X[:3], [0, -1, 2]), (X[3:5], [1, 1])], test=(X[5:7], [0, 1])
    )
    part = federation.partition
    assert [list(p) for p in part.labeled] == [[0, 2], [3, 4]]
    assert [list(p) for p in part.unlabeled] == [[1], []]
    assert list(federation.test) == [5, 6]
    assert not len(federation.validation)
    assert federation.num_classes == 3
    assert federation.y.dtype == np.int32
    np.testing.assert_array_equal(federation.x, X[:7])


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([], {}, "0 clients"),
        ([(X[:2].astype(object), [0, 1])], {}, r"of type object; numbers .*x\.astype\(float\)"),
        ([(X[:3], [0, 1])], {}, r"labels of shape \(2,\), int64, for 3 examples"),
        ([(X[:2], [0.0, 1.5])], {}, "labels are a quantity, 1.5"),
        ([(X[:2] * np.nan, [0, 1])], {}, "nan or infinite"),
        (
            [(X[:2], [0, 1]), (X[:2, :3], [0, 1])],
            {},
            r"clients\[1\]: examples are an array \[2, 3\]",
        ),
        ([(X[:2], [0, 5])], {"num_classes": 3}, r"clients\[0\]: label 5 is not a class"),
        ([(X[:2], [0, -2])], {}, "label -2 is not a class"),
        ([(X[:2], [0, 0])], {}, "the highest label is 0; use"),
        ([(X[:2], [0, 1])], {"new": []}, "1 clients and 0 of their new points"),
    ],
)
def test_arrays_that_are_no_clients(clients, options, message):
    with pytest.raises(jaxfed.UsageError, match=message):
        jaxfed.Federation.from_clients(clients, **options)


def test_training_has_defaults_for_all_but_its_model():
    model = from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,))
    training = jaxfed.Training(model)
    assert set(training.pseudo_labels) >= {"none", "unlabeled", "network", "teacher"}
    assert training.local.labeled_batches is training.local.batches
    batches = jaxfed.Batches("joint", size=4, epochs=2)
    assert jaxfed.LocalTraining(batches=batches).labeled_batches is batches
    mapped = jax.jit(training.execution.map_clients(lambda shared, client: shared + client))
    np.testing.assert_array_equal(mapped(np.float32(1), np.arange(3, dtype=np.float32)), [1, 2, 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"rounds": 1.5}, r"rounds=1\.5"),
        ({"rounds": "3"}, "rounds='3'"),
        ({"cohort_size": 3}, "cohort_size=3; use 1 to 2, and 0 for all"),
        ({"cohort_size": -1}, "cohort_size=-1"),
        ({"seed": -1}, "seed=-1; use integers from 0"),
        ({"seed": None}, "seed=None; use integers from 0"),
        ({"evaluate_every": -1}, "evaluate_every=-1; use integers from 1 on"),
        ({"on_round": "print"}, "on_round='print'; use a function"),
        ({"sampling": "unifrom"}, "sampling='unifrom'; choose one of 'uniform', 'proportional'"),
        ({"sampling": "groups"}, "sampling='groups'; choose one of"),
    ],
)
def test_rounds_that_cannot_be(options, message):
    federation = jaxfed.Federation.from_clients(clients_of(2))
    method = jaxfed.algorithms.ALGORITHMS["client_knn"](num_classes=3)
    with pytest.raises(jaxfed.UsageError, match=message):
        simulate(method, federation, **options)


@pytest.mark.parametrize(
    ("width", "outputs", "message"),
    [
        (4, 1, "has 1 outputs and the clients have 3 classes"),
        (5, 3, r"does not take examples of \(4,\): "),
    ],
)
def test_a_network_for_other_clients_is_refused(width, outputs, message):
    """Too few outputs would train without a word: one-hot labels beyond them are all zeros."""
    federation = jaxfed.Federation.from_clients(clients_of(2), num_classes=3)
    model = from_flax(lambda rngs: nnx.Linear(width, outputs, rngs=rngs), (width,))
    method = jaxfed.algorithms.fedavg(training=jaxfed.Training(model))
    with pytest.raises(jaxfed.UsageError, match=message):
        simulate(method, federation)


def test_rounds_of_stage_1_alone_are_refused():
    federation = jaxfed.Federation.from_clients(clients_of(2))
    model = from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,))
    training = jaxfed.Training(model, labeled_only_rounds=3)
    method = jaxfed.algorithms.fedavg(training=training, pseudo_label="network")
    named = r"^rounds=3: .* Training\.labeled_only_rounds=3"
    with pytest.raises(jaxfed.UsageError, match=named):
        simulate(method, federation, rounds=3)
    assert jaxfed.algorithms.fedavg(training=training).labeled_only_rounds == 0


def test_what_is_no_method_no_clients_no_model():
    federation = jaxfed.Federation.from_clients(clients_of(2))
    method = jaxfed.algorithms.ALGORITHMS["client_knn"](num_classes=3)
    with pytest.raises(jaxfed.UsageError, match="algorithm is a str; use a FederatedAlgorithm"):
        simulate("fedavg", federation)
    with pytest.raises(jaxfed.UsageError, match="federation is a list; use a Federation"):
        simulate(method, clients_of(2))
    with pytest.raises(jaxfed.UsageError, match="clock is a float; use Clock"):
        simulate(method, federation, clock=0.1)
    with pytest.raises(jaxfed.UsageError, match="asynchrony is a int; use Asynchrony"):
        simulate(method, federation, asynchrony=10)
    with pytest.raises(jaxfed.UsageError, match="Training: model is a Linear; from_flax"):
        jaxfed.Training(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))


def test_what_pseudo_labels_start_from_is_a_candidate():
    """As in an experiment: of validation 0.1, 0.2, 0.9, 0.3 ... the state after round 2 is reported."""
    qualities = [0.1, 0.2, 0.9, 0.3, 0.3, 0.3]
    method = FederatedAlgorithm(
        lambda key, federation: np.int32(0),
        lambda state, cohort, key: (state + 1, {}),
        evaluate=lambda state, federation: {"test_accuracy": qualities[state]},
        validate=lambda state, federation: {"validation_accuracy": qualities[state]},
        judged_after=2,
    )
    found = simulate(method, jaxfed.Federation.from_clients(clients_of(2)), rounds=5)
    assert [r["round"] for r in found.records if "validation_accuracy" in r] == [0, 2, 5]
    assert (found.state, found.last_state, found.metrics["test_accuracy"]) == (2, 5, 0.9)


def test_rounds_are_evaluated_on_request_or_it_is_an_error():
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
    with pytest.raises(jaxfed.UsageError, match="evaluate_every=2: there are no validation examp"):
        simulate(fedavg, alone, **options)
    with pytest.raises(jaxfed.UsageError, match="evaluate_test=True: there are no test examples"):
        simulate(fedavg, jaxfed.Federation.from_clients(clients), evaluate_test=True)


def test_nobody_with_a_label_is_an_error_and_not_a_random_start():
    clients = [(x, np.full(len(y), -1)) for x, y in clients_of(2)]
    federation = jaxfed.Federation.from_clients(clients, test=(X[60:], Y[60:]), num_classes=3)
    method = jaxfed.algorithms.ALGORITHMS["client_knn"](num_classes=3)
    with pytest.raises(jaxfed.UsageError, match=r"nobody has a label, .*, or server=\(x, y\)"):
        simulate(method, federation)


def test_a_method_has_the_name_by_which_it_was_called():
    training = jaxfed.Training(from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,)))
    assert jaxfed.algorithms.fedavg_network(training=training).name == "fedavg_network"
    assert jaxfed.algorithms.fedprox(training=training, mu=0.1).name == "fedprox"
    named = jaxfed.algorithms.fedprox
    assert named.__doc__ == jaxfed.algorithms.ALGORITHMS["fedprox"].__doc__
