"""Files, overrides and checks of a config that `refusals.txt` has no rows of."""

import sys
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from jaxfed.config import base, check
from jaxfed.config import file as config_file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.check import check_number_of_clients
from jaxfed.config.data import simulation as simulations
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation

DIGITS = "ml_collections_configs/xclp_digits.py"


def digits(*overrides: str) -> ConfigDict:
    return config_file.load(DIGITS, overrides)


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=3", "seed", 3),
        ("xclp.alpha=0.5", "xclp.alpha", 0.5),
        ("xclp.alpha=1", "xclp.alpha", 1.0),
        ("xclp.tolerance=1e-4", "xclp.tolerance", 1e-4),
        ("xclp.relative_confidence=true", "xclp.relative_confidence", True),
        ("xclp.relative_confidence=False", "xclp.relative_confidence", False),
        ("dataset.root=/a=b", "dataset.root", "/a=b"),
        ("dataset.root=", "dataset.root", ""),
        ("baselines=", "baselines", ()),
        ("baselines=client_knn", "baselines", ("client_knn",)),
        ("baselines=client_knn, pooled_lp", "baselines", ("client_knn", "pooled_lp")),
        ("baselines=('client_knn',)", "baselines", ("client_knn",)),
        ("federation.table=((1, 0), (0, 1))", "federation.table", ((1, 0), (0, 1))),
        ("training.class_weights=(1, 2.5)", "training.class_weights", (1, 2.5)),
        ("training.class_weights=1, 2.5", "training.class_weights", (1, 2.5)),
        ("training.augmentation=flip,cutout:3", "training.augmentation", ("flip", "cutout:3")),
        (
            "selection.candidates.xclp.num_bits=32,64",
            "selection.candidates.xclp.num_bits",
            (32, 64),
        ),
        (
            "selection.candidates.xclp.alpha=(0, 0.5)",
            "selection.candidates.xclp.alpha",
            (0.0, 0.5),
        ),
    ],
)
def test_override_is_read_as_the_type_that_stands_there(override, key, value):
    config = digits(override)
    *sections, name = key.split(".")
    for section in sections:
        config = config[section]
    assert config[name] == value
    assert type(config[name]) is type(value)


def test_baselines_follow_xclp_and_can_be_set_alone():
    config = digits("pooled_lp.num_neighbors=7", "xclp.num_neighbors=20", "xclp.alpha=0.9")
    assert config.per_client_lp.to_dict() | {"alpha": 0} == {
        "num_neighbors": 20,
        "alpha": 0,
        "similarity_power": 1.0,
        "label_matrix": "plain",
        "client_prior": 0.0,
        "client_prior_labels": 0.0,
        "select": (),
        "select_measure": "accuracy",
        "confidence": "entropy",
        "relative_confidence": False,
        "tolerance": 1e-6,
        "max_steps": 1000,
    }
    assert config.per_client_lp.alpha == config.pooled_lp.alpha == 0.9
    assert config.pooled_lp.num_neighbors == 7
    assert config.xclp.num_neighbors == 20


def test_many_repeats_are_no_reason_to_keep_silent(monkeypatch):
    """A million of them would be dealt out for hours before the first round."""
    simulation, dealt = Simulation(digits("num_repeats=1000000")), []
    deal = simulations.dealt
    monkeypatch.setattr(simulations, "dealt", lambda *given: dealt.append(1) or deal(*given))
    simulation.warn()
    assert 0 < len(dealt) <= 101


def test_defaults_are_right_and_every_rule_has_one():
    config = base.get_config()
    config.dataset.name = "digits"
    check.check(config)


def test_a_config_file_imports_modules_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_a_config.py").write_text("ROUNDS = 7\n")
    (tmp_path / "a.py").write_text(
        "from jaxfed.config import base\nfrom beside_a_config import ROUNDS\n"
        "def get_config(variant=''):\n"
        "    config = base.get_config()\n    config.rounds = ROUNDS\n    return config\n"
    )
    assert config_file.load(str(tmp_path / "a.py")).rounds == 7


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.py", "x = (\n", "line 1: '(' was never closed"),
        ("a.py", "x = 1\n", "defines no get_config"),
        ("a.py", "get_config = 5\n", "defines no get_config"),
        ("a.py", "def get_config(dataset, variant): pass\n", "missing 2 required positional"),
        ("a.py", "def get_config(): return {}\n", "returned dict"),
        ("a.py", "def get_config(variant=''): pass\n", "returned NoneType"),
        ("a.txt", "x = 1\n", "ends in .py"),
        ("a.py", None, "no such file"),
    ],
)
def test_an_unusable_config_file_is_one_line(name, content, words, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError) as caught:
        config_file.load(str(tmp_path / name))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_of_configs_is_none_and_a_variant_needs_a_place():
    with pytest.raises(UsageError, match=r"missing 2 required.*; use get_config\(variant=''\)$"):
        config_file.load("_xclp_prediction.py")
    with pytest.raises(UsageError, match=r"takes 0 positional arguments but 1 was given; use get_"):
        config_file.load(f"{Path(base.__file__).parent / 'base.py'}:smoke")


def test_a_mistyped_file_is_guessed():
    with pytest.raises(UsageError, match=r"no such file, did you mean 'xclp_digits'\?"):
        config_file.load("ml_collections_configs/xclp_digit.py")
    with pytest.raises(UsageError, match=r"did you mean 'fedct'\?"):
        config_file.load("ml_collections_configs/fedtc.py")
    with pytest.raises(UsageError, match=r"known are audit, fed_isic2019,"):
        config_file.load("ml_collections_configs/zzz.py")


def test_a_config_without_its_ending_is_told_so(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(
        UsageError, match=r"mine: a config file is Python and its name ends in \.py"
    ):
        config_file.load(f"{tmp_path / 'mine'}:smoke")


def test_a_bug_in_a_config_file_keeps_its_traceback(tmp_path):
    for error, line in ((KeyError, "return {}[0]"), (TypeError, "return len()")):
        path = (
            tmp_path / f"{error.__name__}.py"
        )  # one file's bytecode may be the other's, if as long
        path.write_text(f"def get_config():\n    {line}\n")
        with pytest.raises(error):
            config_file.load(str(path))


def test_a_loaded_config_takes_no_new_keys():
    with pytest.raises(AttributeError):
        digits().new_key = 3


PROTOCOLS = ("xclp.hamming=masked", "xclp.row_sums=masked_resilient", "xclp.influence=columns")
NATURAL = ("federation.partition=natural", "federation.num_clients=0")


@pytest.mark.parametrize(
    ("overrides", "enough", "line"),
    [
        # Departures are of clients that there are.
        (["xclp.presence=10@setup"], 11, r"config\.xclp\.presence: client 10: at most 9 of 10"),
        (
            ["xclp_auto.presence=4@setup"],
            5,
            r"config\.xclp_auto\.presence: client 4: at most 3 of 4",
        ),
    ],
)
def test_a_number_of_clients_that_the_data_tell_is_checked_with_them(overrides, enough, line):
    config = digits("baselines=", "xclp_auto.select=()", *PROTOCOLS, *NATURAL, *overrides)
    if "xclp_auto" in overrides[0]:
        config.baselines = ("xclp_auto",)
    check.check(config)
    check_number_of_clients(config, enough)
    with pytest.raises(UsageError, match=f"^{line}"):
        check_number_of_clients(config, enough - 1)


@pytest.mark.parametrize("section", ["training", "fedavg.training"])
def test_epochs_that_exceed_the_memory_are_refused_as_they_were_set(monkeypatch, section):
    monkeypatch.setattr("jaxfed.federation.execution.settings.available_bytes", lambda: 10**6)
    given = ["algorithm=fedavg", "preprocessing.kind=identity", f"{section}.epochs=100000"]
    clients = [(np.zeros((3, 2), np.float32), np.array([0, 1, 0]))] * 2
    federation = Federation.from_clients(clients, test=clients[0])
    with pytest.raises(UsageError) as caught:
        make_algorithm(config_file.load("fedavg_xclp.py", given), "fedavg", federation)
    order = "an order of 3 examples each would take 1.2 MB of memory, there are 1 MB"
    assert str(caught.value) == f"config.{section}.epochs=100000: {order}"
