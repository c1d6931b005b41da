"""Settings of one method alone, and a second name for an algorithm."""

import json

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from jaxfed.config import base, check, methods
from jaxfed.config import file as config_file
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import as_text, with_overrides
from jaxfed.errors import UsageError
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.run.summary import divergence
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.federation.method import method
from jaxfed.host.interruption import Interruption

FEDADAM = (
    "fedadam.training.server_learning_rate=0.02",  # before the section is there
    "fedadam.algorithm=fedavg",
    "fedadam.training.server_optimizer=adam",
)


def training_config(*overrides):
    return config_file.load("ml_collections_configs/fedavg_xclp.py", overrides)


def test_rounds_of_stage_1_are_enough_for_what_has_no_other():
    check.check(training_config("rounds=15", "algorithm=fedavg", "baselines=fedprox"))
    check.check(training_config("rounds=21"))


def test_what_is_a_methods_own_is_so_for_it_alone():
    config = training_config(*FEDADAM, "fedavg.training.epochs=2", "fedprox.training.epochs=3")
    check.check(config)
    seen = {
        name: methods.with_own_training(config, name).training
        for name in ("fedavg", "fedadam", "fedprox", "fedsem")
    }
    assert {name: training.epochs for name, training in seen.items()} == {
        "fedavg": 2,
        "fedadam": 2,  # of its algorithm
        "fedprox": 3,
        "fedsem": 5,
    }
    assert [training.server_optimizer for training in seen.values()] == [
        "sgd",
        "adam",
        "sgd",
        "sgd",
    ]
    assert seen["fedadam"].server_learning_rate == 0.02
    assert config.training.epochs == 5
    own = methods.with_own_training(config, "fedadam")
    assert methods.with_own_training(own, "fedadam") is own


def test_an_error_about_local_training_has_the_key_of_the_method():
    for text, key in (
        ("training.client_optimizer=kept", "training"),
        ("fedloke.training.client_optimizer=kept", "fedloke.training"),
    ):
        config = training_config(text)
        with (
            pytest.raises(
                UsageError, match=rf"^config\.{key}\.client_optimizer='kept': use 'fresh'"
            ),
            methods.naming(config, "fedloke"),
        ):
            raise UsageError(
                key="client_optimizer", owner="LocalTraining", value="kept", allowed="use 'fresh'"
            )


def test_a_variant_has_its_algorithms_keywords_and_its_own_over_them():
    config = training_config("near.algorithm=fedprox", "near.mu=0.5", "fedprox.pseudo_label=xclp")
    check.check(config)
    assert methods.keywords(config, "near") == {"mu": 0.5, "pseudo_label": "xclp"}
    assert methods.keywords(config, "fedprox") == {"mu": 0.01, "pseudo_label": "xclp"}


def test_a_keyword_that_the_config_does_not_name_has_its_default_type():
    config = config_file.load("ml_collections_configs/xclp_digits.py", ["fedprox.mu=1"])
    assert config.fedprox.to_dict() == {"mu": 1.0}
    assert "scaffold" not in config


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


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"dataset": {"algorithm": "fedavg"}},
            "config.dataset.algorithm: unknown key",
        ),
        ({"a-b": {"algorithm": "fedavg"}}, "'a-b' cannot name a method"),
        ({"mine": {"algorithm": 3}}, "config.mine.algorithm=3"),
        (
            {"mine": {"algorithm": "fedavg", "training": 3}},
            "config.mine.training: unknown key",
        ),
        ({"mine": {"training": {"epochs": 1}}}, "config.mine: no such section"),
        (
            {"mine": {"algorithm": "fedavg", "training": {"rate": 1}}},
            "config.mine.training.rate: unknown",
        ),
    ],
)
def test_a_wrong_section_in_a_file_too(section, words):
    config = training_config().unlock()
    for name, content in section.items():
        config[name] = ConfigDict({**config.get(name, {}), **content})
    with pytest.raises(UsageError) as caught:
        check.check(config)
    assert words in str(caught.value)


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


def test_divergence_names_the_key_that_was_too_large():
    config = training_config(*FEDADAM, "fedavg.training.learning_rate=9")
    record = {"repeat": 0, "round": 1, "learning_rate": 9}
    for name, key in (("fedadam", "fedavg.training"), ("fedsem", "training")):
        text = divergence(config, record | {"algorithm": name})
        assert text.endswith(f"lower config.{key}.learning_rate")


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
