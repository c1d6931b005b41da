"""Settings of one method alone, a second name for an algorithm, and clients' learners."""

import json

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

import jaxfed
from jaxfed.config import assembly, base, check, methods
from jaxfed.config import file as config_file
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import as_text, with_overrides
from jaxfed.errors import UsageError
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.federation.clients import Federation
from jaxfed.federation.method import method
from jaxfed.host.interruption import Interruption

FEDADAM = (
    "fedadam.training.server_learning_rate=0.02",  # before the section is there
    "fedadam.algorithm=fedavg",
    "fedadam.training.server_optimizer=adam",
)


def training_config(*overrides):
    return config_file.load("ml_collections_configs/fedavg_xclp.py", overrides)


def test_what_is_a_methods_own_is_so_for_it_alone():
    config = training_config(*FEDADAM, "fedavg.training.epochs=2", "fedprox.training.epochs=3")
    check.check(config)
    seen = {
        name: methods.with_own_training(config, name).training
        for name in ("fedavg", "fedadam", "fedprox", "fedsem")
    }
    assert [training.epochs for training in seen.values()] == [2, 2, 3, 5]
    assert [one.server_optimizer for one in seen.values()] == ["sgd", "adam", "sgd", "sgd"]
    assert seen["fedadam"].server_learning_rate == 0.02
    assert config.training.epochs == 5
    own = methods.with_own_training(config, "fedadam")
    assert methods.with_own_training(own, "fedadam") is own


def test_a_variant_has_its_algorithms_keywords_and_its_own_over_them():
    config = training_config("near.algorithm=fedprox", "near.mu=0.5", "fedprox.pseudo_label=xclp")
    check.check(config)
    assert methods.keywords(config, "near") == {"mu": 0.5, "pseudo_label": "xclp"}
    assert methods.keywords(config, "fedprox") == {"mu": 0.01, "pseudo_label": "xclp"}


def test_a_keyword_without_a_default_has_to_be_given(monkeypatch):
    @method()
    def needy(*, training, mu):
        """A method that a config cannot leave to its defaults."""

    monkeypatch.setitem(methods.ALGORITHMS, "needy", needy)
    with pytest.raises(UsageError, match=r"^config\.needy\.mu: missing; 'needy' needs it$"):
        check.check(training_config("algorithm=needy", "baselines="))
    given = training_config("algorithm=needy", "baselines=", "needy.mu=0.5")
    assert given.needy.mu == 0.5
    check.check(given)


def test_rows_of_one_table_differ_in_what_is_their_own(tmp_path):
    """A variant without settings is its algorithm to the bit; one with Adam at the server is not."""
    config = training_config(
        *FEDADAM,
        *("twin.algorithm=fedavg", "algorithm=fedavg", "baselines=fedadam,twin,short"),
        *("short.algorithm=fedavg", "short.training.labeled_only_rounds=1"),
        *("num_repeats=1", "rounds=3", "training.labeled_only_rounds=0", "evaluate_every=0"),
        *("dataset.train_size=200", "training.epochs=1"),
    )
    check.check(config)
    simulation = Simulation(config)
    simulation.warn()
    with (
        open_workdir(tmp_path, config.to_dict()) as workdir,
        RunProgress(config.to_dict(), Console(quiet=True)) as progress,
    ):
        summary = Experiment(config, simulation, workdir, progress, Interruption()).run()
        lines = workdir.read_metrics()
    loss = {
        name: [line["train_loss"] for line in lines if line["algorithm"] == name and line["round"]]
        for name in summary["algorithms"]
    }
    assert list(loss) == ["fedavg", "fedadam", "twin", "short"]
    assert loss["twin"] == loss["fedavg"]
    assert loss["fedadam"][0] == loss["fedavg"][0]  # of the same model on the same clients
    assert loss["fedadam"][1] != loss["fedavg"][1]
    assert np.isfinite(loss["fedadam"]).all()
    measured = [
        line["round"]
        for line in lines
        if line["algorithm"] == "short" and "validation_accuracy" in line
    ]
    assert measured == [0, 1, 3]  # with the end of its own stage 1
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["fedadam"] == {
        "algorithm": "fedavg",
        "training": {"server_learning_rate": 0.02, "server_optimizer": "adam"},
    }
    assert written["training"]["server_optimizer"] == "sgd"


@pytest.mark.parametrize(
    "key", ["fedprox.mu", "fedprox.training.learning_rate", "training.learning_rate", "mine.mu"]
)
def test_a_file_may_write_a_number_as_an_integer(key):
    config = base.get_config()
    config.fedprox = ConfigDict({"mu": 1, "training": {"learning_rate": 1}})
    config.mine = ConfigDict({"algorithm": "fedprox", "mu": 1})
    config.training = ConfigDict({**config.training, "learning_rate": 1})
    changed = with_overrides(config, [f"{key}=0.5"])
    assert dict(flatten(changed.to_dict()))[key] == 0.5
    with pytest.raises(UsageError, match=r"rounds=0.5: use integers"):
        with_overrides(config, ["rounds=0.5"])


def test_numbers_of_numpy_are_numbers():
    assert as_text("x", np.float32(0.5)) == "x=0.5"
    assert as_text("x", (np.int64(3), 4)) == "x=(3, 4)"
    assert as_text("x", np.bool_(True)) == "x=true"


FEDCT = "ml_collections_configs/fedct.py"


def two_clients():
    return Federation.from_clients([([[0.0]], [0]), ([[1.0]], [1])])


def load(*overrides, variant=""):
    return config_file.load(f"{FEDCT}:{variant}", overrides)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("learner.decision_tree.max_depth=4", 4),
        ("learner.network.pseudo_weight=2", 2.0),
        ("learner.estimator.C=10.0", 10.0),
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
