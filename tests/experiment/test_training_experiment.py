"""Training through the round loop: selection by validation, stages, and being killed at any moment."""

import json

import numpy as np
import pytest
from rich.console import Console
from whole_figures import run_figures

from jaxfed.config import file as config_file
from jaxfed.config.check import check
from jaxfed.config.data.simulation import Simulation
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.run.simulate import Selected
from jaxfed.experiment.store.records import Run
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.interruption import Interruption

CONFIG = "ml_collections_configs/fedavg_xclp.py"


SMALL = (
    *("dataset.train_size=600", "xclp.num_bits=128", "algorithm=fedavg_network", "baselines=()"),
    "checkpoint_every=4",
)


@pytest.fixture
def config():
    return config_file.load(f"{CONFIG}:smoke", SMALL)


@pytest.fixture(scope="module")
def stage1(tmp_path_factory):
    """The workdir of a first stage, and its metrics."""
    config = config_file.load(f"{CONFIG}:smoke", SMALL)
    config.algorithm, config.training.labeled_only_rounds = "fedavg", 0
    place = tmp_path_factory.mktemp("stage1")
    return place, run(config, place)[1]


def run(config, path):
    settings = config.to_dict()
    with (
        open_workdir(path, settings) as workdir,
        RunProgress(settings, Console(quiet=True)) as progress,
    ):
        summary = Experiment(config, Simulation(config), workdir, progress, Interruption()).run()
        return summary, workdir.read_metrics()


def test_the_best_validation_state_alone_is_tested(config, tmp_path):
    check(config)
    summary, records = run(config, tmp_path)
    validated = {
        r["round"]: r["validation_accuracy"] for r in records if "validation_accuracy" in r
    }
    assert list(validated) == [0, 2, 4, 6]
    assert "seconds" not in records[0]  # the state that training starts from; no round has been
    assert [r["round"] for r in records if "test_accuracy" in r] == [6]
    best = max(validated, key=validated.get)
    assert records[-1]["selected_round"] == best
    assert records[-1]["selected_validation_accuracy"] == validated[best]
    assert summary["test_accuracy"] == records[-1]["test_accuracy"] > 0.3
    assert [r["communication"]["upload_bytes"] > 0 for r in records[1:]] == [True] * 6
    for name, number in (("fedavg_network-0", best), ("fedavg_network-0-last", 6)):
        assert Checkpoints(tmp_path / "states" / name).latest().progress["round"] == number


def test_the_test_set_is_watched_on_request_and_selects_nothing(config, tmp_path):
    config.algorithm, config.num_repeats, config.rounds = "fedavg", 1, 4
    config.training.labeled_only_rounds = 0
    plain, unwatched = run(config, tmp_path / "plain")
    config.evaluate_test = True
    summary, watched = run(config, tmp_path / "watched")
    curve = {r["round"]: r["round_test_accuracy"] for r in watched if "round_test_accuracy" in r}
    assert list(curve) == [0, 2, 4]
    last = watched[-1]
    assert [r["round"] for r in watched if "test_accuracy" in r] == [4]
    assert last["test_accuracy"] == curve[last["selected_round"]]
    assert not any("round_test_accuracy" in r for r in unwatched)
    for key in ("selected_round", "test_accuracy", "validation_accuracy", "train_loss"):
        assert last[key] == unwatched[-1][key]
    assert summary["test_accuracy"] == plain["test_accuracy"]
    assert set(run_figures(read_run_of(tmp_path / "watched", summary))) >= {
        "round_test",
        "train_loss",
    }


def read_run_of(path, summary):
    return Run(path, json.loads((path / "config.json").read_text()), summary)


def test_what_clients_get_each_is_in_the_last_line_only(config, tmp_path):
    config.algorithm, config.num_repeats, config.rounds = "fedavg", 2, 2
    summary, records = run(config, tmp_path)
    with_clients = [r for r in records if "client_unlabeled_accuracy" in r]
    assert [(r["repeat"], r["round"]) for r in with_clients] == [(0, 2), (1, 2)]
    for record in with_clients:
        each = record["client_unlabeled_accuracy"]
        assert len(each) == config.federation.num_clients
        assert record["worst_client_unlabeled_accuracy"] == min(each)
        assert record["mean_client_unlabeled_accuracy"] == pytest.approx(np.mean(each))
    measured = summary["algorithms"]["fedavg"]
    assert measured["worst_client_unlabeled_accuracy"]["values"] == [
        min(record["client_unlabeled_accuracy"]) for record in with_clients
    ]
    assert "client_unlabeled_accuracy" not in measured  # one number a client stays in its line


def test_a_method_that_diverges_stops_and_the_others_go_on(config, tmp_path):
    config.algorithm, config.baselines, config.num_repeats = "fedavg", ("client_knn",), 2
    config.rounds = 2
    config.training.labeled_only_rounds, config.training.learning_rate = 0, 1e30
    summary, records = run(config, tmp_path / "run")
    trained = [r for r in records if r["algorithm"] == "fedavg" and r["round"] > 0]
    assert [(r["repeat"], r["round"]) for r in trained] == [(0, 1), (1, 1)]
    assert all(r["diverged"] and r["train_loss"] is None for r in trained)
    assert "test_accuracy" not in summary
    for repeat, line in enumerate(summary["diverged"], start=1):
        where = f"fedavg diverged in repeat {repeat}, round 1, at a learning rate of 1e+30"
        assert line.startswith(where)
    others = [r["round"] for r in records if r["algorithm"] == "client_knn"]
    assert others == [1, 2, 1, 2]
    assert not (tmp_path / "run" / "states" / "fedavg-0").exists()
    assert "diverged" not in summary["algorithms"]["fedavg"]


def test_selection_keeps_the_earlier_of_equals_and_the_newest_without_a_measure():
    selected = Selected("a", "a", -1.0, 0)
    for number, (state, accuracy) in enumerate([("b", 0.5), ("c", 0.5), ("d", 0.4), ("e", 0.6)], 1):
        selected = selected.after(number, state, {"validation_accuracy": accuracy})
        assert selected.state == state
        assert selected.best == {1: "b", 2: "b", 3: "b", 4: "e"}[number]
    assert selected.round == 4
    unmeasured = Selected("a", "a", -1.0, 0).after(1, "b", {}).after(2, "c", {})
    assert (unmeasured.best, unmeasured.round) == ("c", 2)


def test_stage_2_starts_from_what_stage_1_left(config, tmp_path, stage1):
    place, first = stage1
    names = Checkpoints(place / "states" / "fedavg-0").latest().progress["names"]
    assert names == {"classes": list("0123456789"), "features": []}
    config.training.labeled_only_rounds, config.training.learning_rate = 0, 1e-9
    config.rounds = 2
    accuracies = {r["round"]: r.get("validation_accuracy") for r in first}
    for start, number in (("", first[-1]["selected_round"]), ("-last", 6)):
        config.training.initial_model = str(place / "states" / ("fedavg-{repeat}" + start))
        _, second = run(config, tmp_path / f"stage2{start}")
        assert second[0]["validation_accuracy"] == accuracies[number]
        assert second[-1]["validation_accuracy"] == pytest.approx(accuracies[number], abs=1e-6)


def test_a_stage_2_that_only_does_harm_is_reported_as_its_start(config, tmp_path, stage1):
    place, first = stage1
    config.training.initial_model = str(place / "states" / "fedavg-{repeat}")
    config.training.labeled_only_rounds, config.training.learning_rate = 0, 30.0
    summary, second = run(config, tmp_path / "stage2")
    assert max(r.get("validation_accuracy", 0) for r in second[1:]) < 0.3
    assert second[-1]["selected_round"] == 0
    assert summary["test_accuracy"] == first[-1]["test_accuracy"] > 0.3
    states = final_states(tmp_path / "stage2")
    start = final_states(place)["fedavg-0"]
    model = [name for name in start if name.startswith("model.")]
    for name in model:
        np.testing.assert_array_equal(states["fedavg_network-0"][name], start[name])
    assert any((states["fedavg_network-0-last"][name] != start[name]).any() for name in model)


def final_states(path):
    """Leaf ("model.dense.kernel") -> array of every state that was kept, read without its structure."""
    states = {}
    for folder in sorted((path / "states").iterdir()):
        (file,) = folder.iterdir()
        with np.load(file) as arrays:
            states[folder.name] = {
                name.removeprefix("state/"): arrays[name] for name in arrays if name != "record"
            }
    return states
