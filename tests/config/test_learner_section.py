"""config.learner, methods of clients with models of their own, and FedCT's config."""

import numpy as np
import pytest

import jaxfed
from jaxfed.config import assembly, check, file
from jaxfed.config.reading import seen_by
from jaxfed.errors import UsageError
from jaxfed.experiment.costs import method_costs
from jaxfed.federation.clients import Federation

FEDCT = "ml_collections_configs/fedct.py"


def two_clients():
    return Federation.from_clients([([[0.0]], [0]), ([[1.0]], [1])])


def load(*overrides, variant=""):
    return file.load(f"{FEDCT}:{variant}", overrides)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("learner.decision_tree.max_depth=4", 4),
        ("learner.network.pseudo_weight=2", 2.0),
        ("learner.network.public_loss=label", "label"),
        ("learner.estimator.estimator=sklearn.svm.SVC", "sklearn.svm.SVC"),
        ("learner.estimator.C=10.0", 10.0),
        ("learner.estimator.degree=2", 2),
        ("learner.estimator.kernel=rbf", "rbf"),
        ("learner.estimator.shrinking=False", False),
        ("learner.estimator.max_iter=None", None),
        ("learner.estimator.hidden_layer_sizes=(8, 4)", (8, 4)),
    ],
)
def test_a_learners_keys_have_its_defaults_types(override, value):
    config = load(override)
    _, name, leaf = override.partition("=")[0].split(".")
    assert config.learner[name][leaf] == value
    assert type(config.learner[name][leaf]) is type(value)
    check.check(config)


SVC = ("learner.name=estimator", "learner.estimator.estimator=sklearn.svm.SVC")


def test_settings_of_a_named_class_reach_it_and_are_judged_by_it():
    def made(*overrides):
        given = load(*SVC, *overrides)
        check.check(given)
        return assembly.Ingredients(given, two_clients()).learner()

    made("learner.estimator.kernel=linear", "learner.estimator.C=2.5")
    with pytest.raises(UsageError, match=r"unexpected keyword argument 'c'"):
        made("learner.estimator.c=2.5")
    with pytest.raises(UsageError, match=r"SVC': The 'C' parameter of SVC must be a float"):
        made("learner.estimator.C=-1.0")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learner.decision_tree.max_depth=3", {"fedct", "local_learning", "centralized"}),
        ("learner.random_forest.num_trees=3", set()),
        ("training.learning_rate=0.5", {"fedavg"}),
        ("fedct.consensus=staple", {"fedct"}),
        ("federation.num_clients=4", {"fedct", "local_learning", "centralized", "fedavg"}),
    ],
)
def test_methods_see_of_learners_what_clients_have(override, expected):
    names = ("fedct", "local_learning", "centralized", "fedavg")
    before, after = load(), load(override)
    assert {name for name in names if seen_by(before, name) != seen_by(after, name)} == expected


def test_factories_get_what_they_ask_for(monkeypatch):
    takes = ["learner", "server_learner", "public", "public_labels", "num_classes"]
    config = load("learner.name=mixed", "learner.names=decision_tree,random_forest")
    monkeypatch.setattr(assembly.Ingredients, "training", pytest.fail)  # trees need none
    made = assembly.Ingredients(config, two_clients()).of(takes)
    assert [*made] == takes
    assert made["num_classes"] == 2
    assert made["public_labels"] is None
    assert len(made["public"]) == 0


def test_there_are_no_costs_of_clients_with_models_of_their_own():
    config = load("federation.labeled_fraction=0.5", "baselines=", variant="smoke")
    with pytest.raises(UsageError, match="has a model for each client"):
        list(method_costs(config))


def test_an_experiment_on_data_at_hand(tmp_path):
    """Trees on breast cancer: every method to the end, and its record again after a stop."""
    result = jaxfed.run(
        load("baselines=local_learning,centralized,pate", variant="smoke,dp"),
        workdir=tmp_path / "run",
        progress=False,
        execution__plots=False,
    )
    assert result.methods == ("fedct", "local_learning", "centralized", "pate")
    final = result.summary["algorithms"]["fedct"]
    assert final["epsilon"]["mean"] == 20.0
    for metric in ("test_accuracy", "consensus_accuracy", "gap_vulnerability"):
        assert 0 <= final[metric]["mean"] <= 1
    assert result.summary["algorithms"]["centralized"]["test_accuracy"]["mean"] > 0.8
    model = result.model("local_learning")
    x = result.federation().x[:5]
    assert model(x).shape == (5, 2)
    np.testing.assert_allclose(model(x).sum(axis=1), 1, rtol=1e-5)
