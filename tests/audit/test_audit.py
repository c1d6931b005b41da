"""An audit from a config to its tables: what is written, resumed, shared and refused."""

import csv
import json
import shutil
from importlib import import_module
from itertools import product

import pytest
from rich.console import Console

from jaxfed.algorithms import ALGORITHMS
from jaxfed.api.run import execute
from jaxfed.audit.audit import Audit
from jaxfed.audit.shadows import AuditShadows
from jaxfed.config import check
from jaxfed.config import file as config_file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.host.interruption import Interruption

SPEC = "--config=ml_collections_configs/audit.py:smoke"
TREES = (
    "learner.name=decision_tree",
    "baselines=local_learning,xclp,per_client_lp",
    "num_repeats=2",
    "rounds=2",
    "audit.rounds=1,2",
    "audit.shadows=12",
    "xclp.num_bits=256",
)
FEW = (  # where figures do not matter
    *(*TREES, "baselines=local_learning,xclp,client_knn", "audit.shadows=4", "xclp.num_bits=64"),
    *("dataset.train_size=300", "dataset.test_size=200", "federation.num_labeled=50"),
    *("federation.public_size=50", "audit.population=12", "execution.plots=false"),
)
ONE_ROUND = (*FEW, "rounds=1", "audit.rounds=1")


def config_of(*settings):
    config = config_file.load("ml_collections_configs/audit.py:smoke", settings)
    check.check(config)
    return config


def run(config, place, **how):
    with RunProgress(config.to_dict(), Console(quiet=True)) as progress:
        return execute(config, place, progress, Interruption(), make_algorithm, **how)


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """One round of each method, queried with few noisy copies of each target."""
    place = tmp_path_factory.mktemp("audit") / "run"
    config = config_of(*ONE_ROUND)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("jaxfed.audit.observations"), "_DRAWS", 1)
        run(config, place, attach=Audit)
    return config, place


@pytest.fixture(scope="module")
def audited_in_full(tmp_path_factory):
    place = tmp_path_factory.mktemp("audit") / "run"
    run(config_of(*TREES), place, attach=Audit)
    return place


def found(place):
    return json.loads((place / "audit" / "audit.json").read_text())


@pytest.mark.slow
def test_methods_have_accuracy_and_vulnerability(audited_in_full):
    place = audited_in_full
    by_adversary = {(row["method"], row["adversary"]): row for row in found(place)["methods"]}
    assert list(by_adversary) == [
        ("fedct", "server"),
        ("local_learning", "nobody"),
        ("xclp", "one more client"),
        ("xclp", "server and a client"),
        ("per_client_lp", ""),
    ]
    rows = {row["method"]: row for row in found(place)["methods"]}
    # A member's copy is at distance 0, and nobody else's.
    assert rows["xclp"]["auc"] == rows["xclp"]["tpr_at_none"] == 1
    assert by_adversary["xclp", "one more client"]["auc"] < 0.9
    assert "auc" not in rows["per_client_lp"]  # nothing is sent
    for name in ("fedct", "local_learning", "xclp"):
        assert 0.3 < rows[name]["accuracy"] < 1
        assert rows[name]["low"] <= rows[name]["auc"] <= rows[name]["high"]
        assert rows[name]["members"] == rows[name]["others"] == 200
    # A tree has its members by heart, and a client's labels are no more than the gap.
    assert rows["local_learning"]["auc"] > 0.6
    assert not rows["local_learning"]["leaves"]
    assert rows["fedct"]["leaves"]
    # One shot, looked at once; tested on nothing held out, which is said where its accuracy stands.
    assert {row["round"] for row in found(place)["attacks"] if row["method"] == "xclp"} == {1}
    assert {name: row["accuracy_on"] for name, row in rows.items()} == {
        **dict.fromkeys(("fedct", "local_learning"), "test"),
        **{"xclp": "asked", "per_client_lp": ""},
    }
    text = (place / "audit" / "vulnerability.md").read_text()
    assert f"| XCLP | one more client | {100 * rows['xclp']['accuracy']:.1f}" in text
    assert text.count("†") == 3
    assert "| XCLP | server and a client |" in text
    with (place / "audit" / "attacks.csv").open() as stream:
        attacks = list(csv.DictReader(stream))
    of_fedct = {(row["attack"], row["round"]) for row in attacks if row["method"] == "fedct"}
    names = ("gap", "difficulty", "reference", "label_translations", "label_noise")
    assert of_fedct == set(product(names, ("1", "2")))
    shadows = {row["shadows"] for row in attacks if row["method"] == "xclp"}
    assert shadows == {"", "played"}
    assert (place / "audit" / "vulnerability.png").stat().st_size > 1000


@pytest.mark.slow
def test_an_audit_resumes_from_what_it_has_seen(audited, tmp_path):
    config, place = audited
    again = tmp_path / "run"
    shutil.copytree(place, again)
    for name in ("summary.json", "audit/audit.json", "audit/vulnerability.csv"):
        (again / name).unlink()
    shadow = next((again / "audit" / "shadows").glob("0-*"))
    shadow.unlink()
    kept = {path: path.stat().st_mtime_ns for path in (again / "audit" / "observations").iterdir()}
    run(config, again, attach=Audit)
    assert found(again) == found(place)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert shadow.exists()


def test_cohorts_that_differ_between_audited_rounds(tmp_path):
    """A client of one audited round has the score of that round, in the mean over rounds, too."""
    config = config_of(
        *(*FEW, "algorithm=local_learning", "baselines=", "num_repeats=1", "cohort_size=2"),
        "audit.shadows=0",
    )
    place = tmp_path / "run"
    run(config, place, attach=Audit)
    with (place / "audit" / "attacks.csv").open() as stream:
        rows = {int(r["round"]): r for r in csv.DictReader(stream) if r["attack"] == "loss"}
    in_one, in_another, over_both = (int(rows[number]["members"]) for number in (1, 2, 0))
    assert max(in_one, in_another) < over_both <= in_one + in_another


def test_methods_share_shadows(audited):
    _, place = audited
    # FedCT's clients and lonely ones have the same trees, one set a repeat.
    names = [path.name for path in (place / "audit" / "shadows").iterdir()]
    assert len([name for name in names if not name.startswith("xclp")]) == 2
    assert {name for name in names if name.startswith("xclp")} == {
        f"xclp-{repeat}-1-{message}.npz" for repeat in (0, 1) for message in ("scores", "labels")
    }


@pytest.mark.slow
def test_runs_without_an_audit_are_refused(tmp_path):
    config = config_of(*TREES, "num_repeats=1", "baselines=")
    place = tmp_path / "run"
    run(config, place)
    with pytest.raises(UsageError, match="without an audit"):
        Audit.check_finished(place)
    with pytest.raises(UsageError, match="without an audit"):
        run(config, place, attach=Audit)
    run(config, place, attach=Audit, overwrite=True)
    Audit.check_finished(place)


def known(config, name, federation):
    return AuditShadows(config, None, None, (), name, 0, federation, None)


def test_shadows_follow_what_a_method_trains():
    config = config_of("learner.name=network", "baselines=fedavg,pate,xclp,centralized", "rounds=4")
    federation = Simulation(config).federation(0)
    of = {name: known(config, name, federation) for name in ("fedct", "fedavg", "pate")}
    assert of["fedct"].identity() == of["fedavg"].identity()
    assert of["fedct"].identity() == known(config, "centralized", federation).identity()
    assert of["fedct"].training() == (4, 3)
    assert of["pate"].training()[0] == 1  # of teachers
    assert of["pate"].identity() != of["fedct"].identity()


def test_looking_changes_no_round(audited, tmp_path, monkeypatch):
    """A run of these methods compares what it tests; an audit asks for no test accuracy."""
    config, place = audited
    with pytest.raises(UsageError, match=r"^config\.federation\.test='central'"):
        run(config, tmp_path / "run")
    monkeypatch.setattr("jaxfed.api.run.check_tested_alike", lambda config: None)
    run(config, tmp_path / "run")
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (place, tmp_path / "run")
    ]
    for seen, unseen in zip(*lines, strict=True):
        del seen["seconds"], unseen["seconds"]
        assert seen == unseen


def test_every_method_is_asked_for():
    """All of the package but those with labels at the server, of another kind's features, and heads."""
    config = config_file.load("ml_collections_configs/audit.py:every_method,dp", ())
    asked = (config.algorithm, *config.baselines)
    assert len(set(asked)) == len(asked)
    own = set(ALGORITHMS) - set(ALGORITHMS.from_outside())
    heads = {"fedncm", "fed3r", "fedcof", "xclp_head"}
    assert own - set(asked) == {"semifl", "fl2", "fedcon", "network", "fedbuff", *heads}
    check.check(config)
