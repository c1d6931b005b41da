"""Every config file: values and sweeps, the commands in its docstring, its smoke; four of them to the end.

`shipped.txt` has a checksum of each config's values off their defaults and of its sweep's points, for each
variant and for those of the papers' tables; "refused" are variants that need another beside them. Where a
change is meant, write it again:

    PYTHONPATH=.:tests python tests/config/test_shipped_configs.py > shipped.txt
"""

import inspect
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from on_demand import on_demand

from jaxfed.config import base, file
from jaxfed.config import check as config_check
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.keys import flatten
from jaxfed.data import FEDMATCH_TABLE
from jaxfed.data.dataset import Dataset
from jaxfed.errors import UsageError

FOLDER = Path("ml_collections_configs")
NAMES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))  # each is an experiment
LONG = ("fedct", "protofssl", "xclp_auto")
TABLE = Path(__file__).with_name("shipped.txt")
LOOP = re.compile(r"for ([A-Z]+) in ([^\\\n]*(?:\\\n[^\\\n]*)*)")
COMMAND = re.compile(r"python -m launch\.(run|sweep|audit) --config=(ml_collections_configs/\S+)")
PROTOFSSL = "protofssl.py"


def module_of(name):
    return file.load_module(f"{FOLDER}/{name}.py")


def commands(name):
    """Entries and configs of all commands; one in a loop for each of what is listed there."""
    text = inspect.getdoc(module_of(name)) or ""
    listed = {loop[1]: words(loop[2]) for loop in LOOP.finditer(text)}
    found = []
    for entry, spec in COMMAND.findall(text):
        looped = re.search(r"\$([A-Z]+)", spec)
        values = listed[looped[1]] if looped else [""]
        found += [(entry, spec.replace(looped[0], v) if looped else spec) for v in values]
    return found


def words(text):
    return text.replace("\\", " ").split()


def swept(path, variant):
    """The points that the file's sweep adds, unchecked; none without a sweep."""
    points = []
    if (sweep := getattr(file.load_module(path), "sweep", None)) is not None:
        takes_variant = len(inspect.signature(sweep).parameters) == 2
        sweep(lambda **point: points.append(point), *([variant] if takes_variant else []))
    return points


def checked(spec, overrides=()):
    """The config; learners of optional packages are refused where these are missing."""
    config = file.load(spec, overrides)
    try:
        config_check.check(config)
    except UsageError as error:
        if "is not installed: pip install" not in str(error):
            raise
    return config


def checksum(spec):
    """Checksum, and whether the config is refused; the values and points that it is of."""
    defaults = dict(flatten(base.get_config().to_dict()))
    config = file.load(f"{FOLDER}/{spec}")
    values = {
        key: value
        for key, value in sorted(flatten(config.to_dict()))
        if repr(defaults.get(key)) != repr(value)
    }
    points = swept(*file.split_variant(f"{FOLDER}/{spec}"))
    found = f"{zlib.crc32(repr((values, points)).encode()):08x}"
    try:
        checked(f"{FOLDER}/{spec}")
    except UsageError:
        found += " refused"
    return found, values, points


def table():
    """Spec -> checksum, in the order of the file."""
    return dict(line.split(maxsplit=1) for line in TABLE.read_text().splitlines())


def variants(name):
    own = getattr(module_of(name), "VARIANTS", {})
    return {f"{name}.py", *(f"{name}.py:{variant}" for variant in {**own, "smoke": None})}


@pytest.mark.parametrize("name", on_demand(NAMES, at_once=set(NAMES) - {*LONG}))
def test_configs_have_the_values_and_sweeps_that_they_had(name):
    recorded = {spec: sum for spec, sum in table().items() if spec.startswith(f"{name}.py")}
    assert variants(name) <= recorded.keys()
    for spec, expected in recorded.items():
        found, values, points = checksum(spec)
        assert found == expected, f"{spec} has {values} and the points {points}"


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", on_demand(NAMES, at_once=set(NAMES) - {*LONG}))
def test_documented_commands_resolve(name):
    assert commands(name)
    for entry, spec in commands(name):
        checked(spec)
        if entry == "sweep":
            path, variant = file.split_variant(spec)
            points = swept(path, variant)
            assert len(points) > 1
            for point in points:
                overrides = [f"{key}={value}" for key, value in point.items()]
                config_check.check(file.load(f"{path}:{variant}", overrides))


def test_configs_that_import_their_base_from_the_folder_still_work(tmp_path):
    own = "from ml_collections_configs import base\n\ndef get_config(): return base.get_config()"
    (tmp_path / "own.py").write_text(own)
    assert file.load(str(tmp_path / "own.py")).rounds == base.get_config().rounds


# Examples of each class in train and test split, and of none.
SIZES = {
    "cifar10": ([5000] * 10, [1000] * 10, 0),
    "svhn_cropped": (
        [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
        [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
        0,
    ),
    "stl10": ([500] * 10, [800] * 10, 100_000),
}


@pytest.fixture
def dealt(monkeypatch):
    """variant -> config and federation of the paper's numbers of examples, each of one pixel."""

    def load(name, **_):
        train, test, num_unlabeled = SIZES[name]
        y = np.repeat(np.arange(10), train)
        y = np.concatenate([y, np.full(num_unlabeled, -1)]).astype(np.int32)
        y_test = np.repeat(np.arange(10), test).astype(np.int32)
        x, x_test = (np.zeros((len(part), 1, 1, 1), np.uint8) for part in (y, y_test))
        return Dataset(name, x, y, x_test, y_test, 10, tuple("0123456789"))

    monkeypatch.setattr("jaxfed.config.data.simulation.load", load)

    def deal(variant):
        config = file.load(f"{PROTOFSSL}:{variant}")
        return config, Simulation(config).federation(0)

    return deal


def counts(federation, clients):
    """int [M, C] of points whose class is known."""
    return np.array(
        [np.bincount(federation.y[p][federation.y[p] >= 0], minlength=10) for p in clients]
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("variant", "held_out", "labels", "unlabeled"),
    [
        ("cifar10_iid", 3000, 5, 490),
        ("cifar10_noniid", 3000, 5, 490),
        ("svhn_iid", 2000, 5, 490),
        ("svhn_noniid", 2000, 5, 490),
        ("stl10", 1500, 10, 980),
    ],
)
def test_sizes_of_protofssls_paper(dealt, variant, held_out, labels, unlabeled):
    _, federation = dealt(variant)
    part = federation.partition
    for points in (federation.validation, federation.test):
        assert len(points) == held_out
        np.testing.assert_array_equal(np.bincount(federation.y[points]), held_out / 10)
    assert federation.num_clients == 100
    assert {len(points) for points in part.unlabeled} == {unlabeled}
    np.testing.assert_array_equal(counts(federation, part.labeled), labels)
    if variant == "stl10":
        assert (federation.y[np.concatenate(part.unlabeled)] == -1).all()
    else:
        np.testing.assert_array_equal(counts(federation, part.unlabeled).sum(axis=0), 4900)


@pytest.mark.sample(1)
@pytest.mark.parametrize("variant", ["cifar10_noniid", "svhn_noniid"])
def test_unlabeled_examples_follow_fedmatchs_table(dealt, variant):
    """Within one of its shares of 490, which the code's 243, 73, 15, 10 (489 in all) are nearly."""
    _, federation = dealt(variant)
    found = counts(federation, federation.partition.unlabeled)
    shares = 490 * np.array(FEDMATCH_TABLE)[np.arange(100) % 10]
    assert np.abs(found - shares).max() < 1
    # With all labels 540, as in the code: 249, 78, 20, 15 but for rounding.
    _, revealed = dealt(f"{variant},fully_supervised")
    everything = counts(revealed, revealed.partition.labeled)
    assert not any(map(len, revealed.partition.unlabeled))
    assert {int(n) for n in everything[np.abs(shares - 245) < 1]} <= {249, 250, 251}
    np.testing.assert_array_equal(everything.sum(axis=1), 540)


def launch(workdir, spec, *overrides):
    """The summary of `launch.run`."""
    options = [f"--config.{override}" for override in overrides]
    command = [sys.executable, "-m", "launch.run", f"--config={FOLDER}/{spec}", *options]
    done = subprocess.run(
        [*command, f"--workdir={workdir}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((workdir / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "methods"),
    [
        ("femnist.py:smoke", {"xclp", "per_client_lp"}),
        ("femnist.py:linear,joint,smoke", {"xclp", "per_client_lp", "network"}),
        ("fed_isic2019.py:smoke", {"xclp", "per_client_lp", "network"}),
        ("fed_isic2019.py:leave_one_out,smoke", {"xclp", "network"}),
    ],
)
def test_smokes_to_the_end(tmp_path, spec, methods):
    summary = launch(tmp_path / "run", spec)
    assert summary["algorithms"].keys() == methods
    assert summary["test_balanced_accuracy"] > 0.7


if __name__ == "__main__":
    known = {spec for name in NAMES for spec in variants(name)} | table().keys()
    for each in sorted(known):
        print(each, checksum(each)[0])
