import json
import os
import signal
from functools import wraps
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file as config_file
from jaxfed.config.data.simulation import Simulation
from jaxfed.experiment.run import simulate
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress, results_table
from jaxfed.experiment.run.summary import summarize
from jaxfed.experiment.store.workdir import Workdir, open_workdir
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method, with_attributes
from jaxfed.host.checkpoint import Checkpoints, CheckpointWriter
from jaxfed.host.interruption import Interrupted, Interruption


class Stop(Exception):
    pass


@method(takes=("num_classes",))
def drift(*, num_classes: int, step: float = 1.0, stop_at: tuple[int, ...] = ()) -> Any:
    """A random walk whose state has arrays, a typed key and numbers; raises before some rounds."""

    def init(key, federation):
        return {"w": jnp.zeros(3), "key": key, "rounds": 0, "num_classes": num_classes}

    def round(state, cohort, key):
        rounds = state["rounds"] + 1
        if rounds in stop_at:
            raise Stop
        noise = jax.random.normal(jax.random.fold_in(state["key"], rounds), (3,))
        w = state["w"] + step * noise + jax.random.normal(key, (3,))
        state = {"w": w, "key": key, "rounds": rounds, "num_classes": num_classes}
        sent = {"upload_bytes": 12 * len(cohort.client_id), "download_bytes": 1}
        return state, {"clients": int(cohort.client_id.sum()), "communication": sent}

    def evaluate(state, federation):
        return {"test_accuracy": float(jax.nn.sigmoid(state["w"][0])), "nothing": float("nan")}

    return FederatedAlgorithm(init, round, evaluate)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> ConfigDict:
    monkeypatch.setitem(ALGORITHMS, "drift", drift)
    monkeypatch.setitem(ALGORITHMS, "slow_drift", drift)
    config = config_file.load("ml_collections_configs/xclp_digits.py").unlock()
    config.algorithm, config.baselines = "drift", ("slow_drift",)
    config.num_repeats, config.rounds, config.cohort_size = 2, 3, 4
    config.checkpoint_every = 1
    config.drift = ConfigDict({"step": 1.0, "stop_at": ()})
    config.slow_drift = ConfigDict({"step": 0.5, "stop_at": ()})
    return config


def run(config: ConfigDict, workdir: Workdir) -> dict[str, Any]:
    with RunProgress(config.to_dict(), Console(quiet=True)) as progress:
        return Experiment(config, Simulation(config), workdir, progress, Interruption()).run()


def without_times(records: Any) -> Any:
    if isinstance(records, dict):
        return {k: without_times(v) for k, v in records.items() if k != "seconds"}
    if isinstance(records, list):
        return [without_times(record) for record in records]
    return records


def test_lines_and_files(config, tmp_path):
    with open_workdir(tmp_path, config.to_dict()) as workdir:
        run(config, workdir)
        records = workdir.read_metrics()
    assert [(r["repeat"], r["algorithm"], r["round"]) for r in records] == [
        (repeat, name, number)
        for repeat in (0, 1)
        for name in ("drift", "slow_drift")
        for number in (1, 2, 3)
    ]
    assert ["test_accuracy" in record for record in records] == 4 * [False, False, True]
    assert records[2]["nothing"] is None
    partition = json.loads((tmp_path / "partition.json").read_text())
    assert np.sum([partition[kind] for kind in ("labeled", "unlabeled", "new")]) == 1797
    assert np.shape(partition["labeled"]) == (10, 10)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "11.npz",
        "12.npz",
    ]


def test_seconds_are_all_that_passes(config, tmp_path, monkeypatch):
    """A round takes 1 s by this clock, judging it 10 and a save 100, which the next line has."""
    now = [0.0]
    monkeypatch.setattr(simulate, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    plain = drift(num_classes=10)

    def taking(seconds, function):
        def timed(*arguments, **keywords):
            now[0] += seconds
            return function(*arguments, **keywords)

        return timed

    @method(takes=("num_classes",))
    def timed_drift(*, num_classes: int) -> Any:
        return plain._replace(round=taking(1, plain.round), evaluate=taking(10, plain.evaluate))

    monkeypatch.setitem(ALGORITHMS, "drift", timed_drift)
    monkeypatch.setattr(CheckpointWriter, "save", taking(100, CheckpointWriter.save))
    config.drift, config.baselines = ConfigDict(), ()
    config.evaluate_every, config.num_repeats = 1, 1
    with open_workdir(tmp_path, config.to_dict()) as workdir:
        run(config, workdir)
        records = workdir.read_metrics()
    assert [record["seconds"] for record in records] == [11, 111, 111]


def test_the_same_seed_gives_the_same_bits_and_another_does_not(config, tmp_path):
    lines = []
    for name, seed in (("a", 0), ("b", 0), ("c", 7)):
        config.seed = seed
        with open_workdir(tmp_path / name, config.to_dict()) as workdir:
            run(config, workdir)
            lines.append(without_times(workdir.read_metrics()))
    assert lines[0] == lines[1]
    assert all(a != c for a, c in zip(lines[0], lines[2], strict=True) if "test_accuracy" in a)


def test_repeats_differ_and_a_repeat_is_its_seed(config, tmp_path):
    with open_workdir(tmp_path / "a", config.to_dict()) as workdir:
        run(config, workdir)
        both = without_times(workdir.read_metrics())
    config.seed, config.num_repeats = 1, 1
    with open_workdir(tmp_path / "b", config.to_dict()) as workdir:
        run(config, workdir)
        second = without_times(workdir.read_metrics())
    assert second == [{**record, "repeat": 0} for record in both[6:]]
    assert both[2] != {**both[8], "repeat": 0}


@pytest.mark.parametrize("stop_at", [1, 2, 3])
@pytest.mark.parametrize("name", ["drift", "slow_drift"])
@pytest.mark.sample(2)
def test_a_resumed_experiment_equals_an_uninterrupted_one(config, tmp_path, name, stop_at):
    with open_workdir(tmp_path / "whole", config.to_dict()) as workdir:
        summary = run(config, workdir)
        whole = workdir.read_metrics()
    settings = config.to_dict()
    with open_workdir(tmp_path / "parts", settings) as workdir:
        config[name].stop_at = (stop_at,)
        with pytest.raises(Stop):
            run(config, workdir)
        done = len(workdir.read_metrics())
        assert done == stop_at - 1 + (3 if name == "slow_drift" else 0)
        workdir.append_metrics({"a round": "that was not saved"})
        config[name].stop_at = ()
        resumed = run(config, workdir)
        assert without_times(workdir.read_metrics()) == without_times(whole)
    assert without_times(resumed) == without_times(summary)


@pytest.mark.parametrize("every", [0, 1])
def test_nothing_is_left_to_do(config, tmp_path, monkeypatch, every):
    config.checkpoint_every = every  # 0: by the clock, after rounds that are too quick for it
    with open_workdir(tmp_path, config.to_dict()) as workdir:
        summary = run(config, workdir)
        monkeypatch.setattr(Simulation, "federation", None)
        assert run(config, workdir) == summary


@pytest.mark.parametrize("every", [0, 1])
def test_a_signal_waits_for_the_round_to_be_saved(config, tmp_path, monkeypatch, every):
    config.checkpoint_every, sent = every, []

    @wraps(drift)
    def signalling(**keywords: Any) -> FederatedAlgorithm:
        algorithm = drift(**keywords)

        def round(state, cohort, key):
            if state["rounds"] == 1 and not sent:
                sent.append(os.kill(os.getpid(), signal.SIGTERM))
            return algorithm.round(state, cohort, key)

        return algorithm._replace(round=round)

    with open_workdir(tmp_path / "whole", config.to_dict()) as workdir:
        whole = run(config, workdir)
    monkeypatch.setitem(ALGORITHMS, "drift", signalling)
    with (
        open_workdir(tmp_path / "parts", config.to_dict()) as workdir,
        RunProgress(config.to_dict(), Console(quiet=True)) as progress,
    ):
        with Interruption() as interruption, pytest.raises(Interrupted) as caught:
            Experiment(config, Simulation(config), workdir, progress, interruption).run()
        assert caught.value.exit_status == 143
        assert [record["round"] for record in workdir.read_metrics()] == [1, 2]
        assert Checkpoints(workdir.checkpoints).latest().progress["step"] == 2
        assert without_times(run(config, workdir)) == without_times(whole)


def test_rounds_that_need_labels_have_clients_with_labels(config, tmp_path, monkeypatch):
    """3 of 10 clients have labels; the method needs them in its first round."""

    @wraps(drift)
    def choosy(**keywords: Any) -> FederatedAlgorithm:
        plain = drift(**keywords)
        chosen = with_attributes(plain.round, needs_labels_in=lambda number: number == 1)
        return plain._replace(round=chosen)

    monkeypatch.setitem(ALGORITHMS, "drift", choosy)
    config.sampling, config.federation.num_labeled_clients = "proportional", 3
    with open_workdir(tmp_path, config.to_dict()) as workdir:
        run(config, workdir)
        sizes = {
            (r["algorithm"], r["round"]): r["communication"]["upload_bytes"] // 12
            for r in workdir.read_metrics()
        }
    assert [sizes["drift", number] for number in (1, 2, 3)] == [3, 4, 4]
    assert [sizes["slow_drift", number] for number in (1, 2, 3)] == [4, 4, 4]


def test_summary_by_hand(config):
    def line(repeat: int, number: int, accuracy: float | None, seconds: float) -> dict[str, Any]:
        return {
            "repeat": repeat,
            "algorithm": "drift",
            "round": number,
            "communication": {"upload_bytes": 10, "download_bytes": 1, "upload": {"codes": 10}},
            **({} if accuracy is None else {"test_accuracy": accuracy}),
            "seconds": seconds,
        }

    records = [
        {"repeat": 0, "algorithm": "drift", "round": 0, "validation_accuracy": 0.1},  # of the start
        line(0, 1, 0.1, 1.0),
        line(0, 2, 0.5, 2.0),
        line(1, 1, None, 4.0),
        line(1, 2, 0.7, 8.0),
    ]
    summary = summarize(config, records)
    assert summary["test_accuracy"] == pytest.approx(0.6)
    assert summary["test_accuracy_std"] == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert summary["seconds"] == 15
    assert summary["communication"] == {"upload_bytes": 20, "download_bytes": 2}
    drift = summary["algorithms"]["drift"]
    assert drift["seconds"]["values"] == [3, 12]
    assert drift["communication"]["upload"]["codes"]["mean"] == 20
    assert "round" not in drift
    assert summarize(config, records[:3])["test_accuracy_std"] is None


def test_bytes_of_a_kind_that_not_every_round_has_add_up(config):
    sent = ({"codes": 10, "helpers": 7}, {"codes": 10}, {})
    whose = {"repeat": 0, "algorithm": "drift", "seconds": 1.0}
    counted = [{"upload_bytes": sum(up.values()), "download_bytes": 0, "upload": up} for up in sent]
    records = [{**whose, "round": 1 + i, "communication": c} for i, c in enumerate(counted)]
    communication = summarize(config, records)["algorithms"]["drift"]["communication"]
    assert communication["upload_bytes"]["mean"] == 27
    means = {kind: measured["mean"] for kind, measured in communication["upload"].items()}
    assert means == {"codes": 20, "helpers": 7}


def test_a_metric_that_a_repeat_lacks_has_no_mean(config):
    records = [
        {"repeat": repeat, "algorithm": "drift", "round": 3, "test_accuracy": value, "seconds": 1.0}
        for repeat, value in enumerate((None, 0.5))
    ]
    summary = summarize(config, records)
    assert summary["test_accuracy"] is None
    assert summary["algorithms"]["drift"]["test_accuracy"]["values"] == [None, 0.5]
    _, rows = results_table(summary["algorithms"], {})
    assert rows[0][:2] == ["drift", "-"]


def test_progress_on_a_terminal_and_elsewhere(config):
    record = {"repeat": 0, "algorithm": "drift", "round": 1, "train_loss": 0.25, "seconds": 0.1}
    validated = {**record, "round": 2, "validation_accuracy": 0.5, "round_test_accuracy": 0.375}
    measured = "train loss 0.2500  validation accuracy 0.5000  round test accuracy 0.3750"
    for is_terminal in (True, False):
        console = Console(force_terminal=is_terminal, width=200, highlight=False)
        with console.capture() as capture, RunProgress(config.to_dict(), console) as progress:
            progress.working_on("repeat 1/2 drift")
            progress.finished_round(validated, 3)
            progress.finished_round(record, 3)
            beside_the_bar = progress._bar.tasks[0].description
            progress.working_on("repeat 1/2 slow_drift")
            progress.finished_round(record, 3)
            of_another = progress._bar.tasks[0].description
        lines = [line for line in capture.get().splitlines() if line.endswith("  0.10 s")]
        if is_terminal:
            assert "3/12" in capture.get()  # the bar counts 2 repeats x 2 methods x 3
            assert not lines
            assert beside_the_bar == f"repeat 1/2 drift  {measured}"
            assert of_another == "repeat 1/2 slow_drift  train loss 0.2500"
        else:
            assert "3/12" not in capture.get()
            assert lines[0] == f"repeat 1/2  drift           round 2/3  {measured}  0.10 s"
            assert lines[1] == "repeat 1/2  drift           round 1/3  train loss 0.2500  0.10 s"
