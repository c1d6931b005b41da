"""Files, overrides and checks of a config that `refusals.txt` has no rows of."""

import sys

import pytest
from ml_collections import ConfigDict

from jaxfed.config import check
from jaxfed.config import file as config_file
from jaxfed.config.check import check_number_of_clients
from jaxfed.errors import UsageError

DIGITS = "ml_collections_configs/xclp_digits.py"


def digits(*overrides: str) -> ConfigDict:
    return config_file.load(DIGITS, overrides)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("seed=3", 3),
        ("xclp.alpha=1", 1.0),
        ("xclp.tolerance=1e-4", 1e-4),
        ("xclp.relative_confidence=False", False),
        ("dataset.root=/a=b", "/a=b"),
        ("dataset.root=", ""),
        ("baselines=", ()),
        ("baselines=client_knn", ("client_knn",)),
        ("baselines=client_knn, pooled_lp", ("client_knn", "pooled_lp")),
        ("baselines=('client_knn',)", ("client_knn",)),
        ("federation.table=((1, 0), (0, 1))", ((1, 0), (0, 1))),
        ("training.class_weights=1, 2.5", (1, 2.5)),
        ("training.augmentation=flip,cutout:3", ("flip", "cutout:3")),
        ("selection.candidates.xclp.num_bits=32,64", (32, 64)),
        ("selection.candidates.xclp.alpha=(0, 0.5)", (0.0, 0.5)),
    ],
)
def test_override_is_read_as_the_type_that_stands_there(override, value):
    config = digits(override)
    *sections, name = override.partition("=")[0].split(".")
    for section in sections:
        config = config[section]
    assert config[name] == value
    assert type(config[name]) is type(value)


def test_baselines_follow_xclp_and_can_be_set_alone():
    config = digits("pooled_lp.num_neighbors=7", "xclp.num_neighbors=20", "xclp.alpha=0.9")
    assert config.per_client_lp.alpha == config.pooled_lp.alpha == 0.9
    assert config.pooled_lp.num_neighbors == 7
    assert config.per_client_lp.num_neighbors == config.xclp.num_neighbors == 20
    with pytest.raises(AttributeError):
        config.new_key = 3


def test_a_config_file_imports_modules_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_a_config.py").write_text("ROUNDS = 7\n")
    (tmp_path / "a.py").write_text(
        "from jaxfed.config import base\nfrom beside_a_config import ROUNDS\n"
        "def get_config(variant=''):\n"
        "    config = base.get_config()\n    config.rounds = ROUNDS\n    return config\n"
    )
    assert config_file.load(str(tmp_path / "a.py")).rounds == 7
    assert config_file.load(str(tmp_path / "a:smoke")).rounds == 7


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = (\n", "'(' was never closed"),
        ("get_config = 5\n", "defines no get_config"),
        ("def get_config(): return {}\n", "returned no"),
        (None, "no such file"),
    ],
)
def test_an_unusable_config_file_is_one_line(content, words, tmp_path):
    if content is not None:
        (tmp_path / "a.py").write_text(content)
    with pytest.raises(UsageError) as caught:
        config_file.load(str(tmp_path / "a.py"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistyped_file_is_guessed_and_a_bug_in_one_keeps_its_traceback(tmp_path):
    with pytest.raises(UsageError, match=r"no such file, did you mean 'xclp_digits'\?"):
        config_file.load("ml_collections_configs/xclp_digit.py")
    (tmp_path / "a.py").write_text("def get_config():\n    return {}[0]\n")
    with pytest.raises(KeyError):
        config_file.load(str(tmp_path / "a.py"))


PROTOCOLS = ("xclp.hamming=masked", "xclp.row_sums=masked_resilient", "xclp.influence=columns")


@pytest.mark.parametrize(
    ("overrides", "enough", "line"),
    [
        (["xclp.presence=10@setup"], 11, r"config\.xclp\.presence: client 10: at most 9 of 10"),
        (["cohort_size=9"], 9, r"config\.cohort_size=9: there are 8 clients"),
    ],
)
def test_a_number_of_clients_that_the_data_tell_is_checked_with_them(overrides, enough, line):
    natural = ("federation.partition=natural", "federation.num_clients=0")
    config = digits("baselines=", *PROTOCOLS, *natural, *overrides)
    check.check(config)
    check_number_of_clients(config, enough)
    with pytest.raises(UsageError, match=f"^{line}"):
        check_number_of_clients(config, enough - 1)
