"""Files of a run that are damaged, foreign or hostile: one line that names the file, whoever reads it."""

import json
import re
import shutil

import numpy as np
import pytest
from damaged_files import ANY, says, says_or_reads

import jaxfed
from jaxfed.errors import Unresumable
from jaxfed.experiment.store.records import find
from jaxfed.experiment.store.workdir import Workdir, is_finished
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.reports.figures import run_plots

SMALL = {
    "num_repeats": 1,
    "dataset__train_size": 200,
    "algorithm": "fedavg",
    "baselines": (),
    "federation__test": "clients",
    "rounds": 3,
    "model__hidden": (8,),
    "execution__plots": False,
    "evaluate_every": 1,
}
READ = (  # files that are read whenever a finished run is opened
    "config.json",
    "data.json",
    "metrics.jsonl",
    "partition.json",
    "summary.json",
    "manifest.json",
    "predictions/fedavg-0.csv.gz",
)
STATE = "states/fedavg-0/3.npz"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("damaged") / "w"
    return jaxfed.run("fedavg_xclp:smoke", workdir=place, progress=False, **SMALL)


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run.workdir, tmp_path / "w")


def of_old_version(place):
    (place / "manifest.json").unlink()
    return place


def damaged(place, name, kind, seed):
    ANY[kind](place / name, np.random.default_rng([seed, *map(ord, name + kind)]))


def of_reports(place):
    """Everything that a report reads of a run, without drawing."""
    for each in find([place]).runs:
        each.results, each.settings  # noqa: B018
        return run_plots(each)


def of_result(place):
    result = jaxfed.open(place)
    result.metrics, result.results, result.predictions("fedavg"), repr(result)


def test_the_manifest_has_every_file_that_is_read(run):
    sizes = json.loads((run.workdir / "manifest.json").read_text())["files"]
    files = {
        str(file.relative_to(run.workdir)) for file in run.workdir.rglob("*") if file.is_file()
    }
    left_out = {name for name in files if name.startswith("checkpoints/")}
    assert sizes.keys() == files - left_out - {".lock", "manifest.json"}
    assert {*READ, STATE} - sizes.keys() == {"manifest.json"}
    assert of_result(run.workdir) is None
    Workdir(run.workdir).check(run.workdir / "states/fedavg-0")


@pytest.mark.parametrize("name", READ)
def test_a_finished_run_notices_every_damage(copied, name):
    """Opening, the same command and a report: none takes what the run has not written."""
    config = json.loads((copied / "config.json").read_text())
    for seed, kind in enumerate(ANY):
        if name == "manifest.json" and kind in ("gone", "old line ends"):
            continue  # older versions left none; \r is a space of JSON
        place = shutil.copytree(copied, copied.parent / str(seed))
        damaged(place, name, kind, seed)
        finished = says_or_reads(lambda place=place: is_finished(place, config))
        if name != "summary.json":  # without it, the run continues
            assert not finished, kind
        error = says(lambda place=place: of_result(place))
        assert name in str(error) or "not finished" in str(error) or "no workdir" in str(error)
        if "not finished" not in str(error):
            says(lambda place=place: of_reports(place))


@pytest.mark.parametrize("name", READ[:-2])
def test_a_report_notices_another_digit(copied, name):
    file = copied / name
    text = file.read_text()
    file.write_text(re.sub(r"\d(?=\D*$)", lambda found: str(9 - int(found[0])), text, count=1))
    says(lambda: of_reports(copied), f"{name} has changed since the run wrote")


def test_a_changed_seed_is_not_the_runs(copied):
    config = json.loads((copied / "config.json").read_text())
    changed = {**config, "seed": config["seed"] + 1}
    (copied / "config.json").write_text(json.dumps(changed, indent=2) + "\n")
    says(lambda: jaxfed.open(copied), r"config\.json has changed since the run wrote it")
    says(lambda: is_finished(copied, config), r"config\.seed is ")
    assert isinstance(says(lambda: is_finished(copied, changed), r"config\.json"), Unresumable)


def test_a_file_that_changes_after_opening_is_noticed(copied):
    result = jaxfed.open(copied)
    for name, read in (
        ("metrics.jsonl", lambda: result.metrics),
        ("predictions/fedavg-0.csv.gz", lambda: result.predictions("fedavg")),
    ):
        content = (copied / name).read_bytes()
        (copied / name).write_bytes(content + content)
        says(read, f"{name} has changed since the run wrote it")
        (copied / name).write_bytes(content)


def test_states_are_compared_when_they_are_read(copied):
    """Also where the file is a whole checkpoint, of another run."""
    Checkpoints(copied / "states/fedavg-0").save(3, {"other": np.ones(3)}, {})
    jaxfed.open(copied).metrics  # noqa: B018
    says(lambda: jaxfed.open(copied).model("fedavg"), r"3\.npz has changed since the run wrote it")


def test_checkpoints_that_are_none(tmp_path):
    """Each kind of damage to the newest one: the older one is used."""
    older = []
    for seed, kind in enumerate(ANY):
        if kind in ("gone", "a link to nothing"):
            continue
        checkpoints = Checkpoints(tmp_path / str(seed))
        for step in (1, 2):
            checkpoints.save(step, {"w": np.arange(50.0)}, {"step": step})
        file = checkpoints.path / "2.npz"
        ANY[kind](file, np.random.default_rng(seed))
        latest = checkpoints.latest()
        np.testing.assert_array_equal(latest.state({"w": np.zeros(1)})["w"], np.arange(50.0))
        older.append(latest.progress["step"] == 1)
    assert sum(older) > len(older) * 2 // 3  # the others are two archives, or differ in their times
