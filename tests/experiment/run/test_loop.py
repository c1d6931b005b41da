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
from jaxfed.data import Dataset
from jaxfed.experiment.run import simulate
from jaxfed.experiment.run.loop import Experiment, legs
from jaxfed.experiment.run.progress import RunProgress, results_table
from jaxfed.experiment.run.summary import summarize
from jaxfed.experiment.store.workdir import Workdir, open_workdir
from jaxfed.federation.algorithm import Course, FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.federation.rounds import num_groups, sample_clients
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


def test_legs_number_all_rounds(config):
    assert [tuple(leg) for leg in legs(config)] == [
        (0, "drift", 1, 3),
        (0, "slow_drift", 4, 6),
        (1, "drift", 7, 9),
        (1, "slow_drift", 10, 12),
    ]


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


def test_a_signal_outside_a_round_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as caught, Interruption():
        os.kill(os.getpid(), signal.SIGINT)
    assert caught.value.exit_status == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_rounds_that_need_labels_have_clients_with_labels(config, tmp_path, monkeypatch):
    """3 of 10 clients have labels; the method needs them in its first round."""

    @wraps(drift)
    def choosy(**keywords: Any) -> FederatedAlgorithm:
        return drift(**keywords)._replace(course=Course(stage_1=1))

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


def test_groups_cover_all_clients_once(config):
    federation = Simulation(config).federation(0)
    config.sampling, config.cohort_size = "groups", 4
    assert num_groups(10, 4) == 3
    groups = [sample_clients(config, federation, 0, number) for number in range(1, 7)]
    assert sorted(map(len, groups[:3])) == [3, 3, 4]
    assert sorted(np.concatenate(groups[:3]).tolist()) == list(range(10))
    assert groups[3:] == groups[:3]
    assert groups[0] != sample_clients(config, federation, 1, 1)


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
    records = [
        {
            "repeat": 0,
            "algorithm": "drift",
            "round": number,
            "communication": {
                "upload_bytes": sum(upload.values()),
                "download_bytes": 0,
                "upload": upload,
            },
            "seconds": 1.0,
        }
        for number, upload in enumerate(sent, 1)
    ]
    communication = summarize(config, records)["algorithms"]["drift"]["communication"]
    assert communication["upload_bytes"]["mean"] == 27
    assert {kind: measured["mean"] for kind, measured in communication["upload"].items()} == {
        "codes": 20,
        "helpers": 7,
    }
    alone = summarize(config, records[2:])["algorithms"]["drift"]["communication"]
    assert alone.keys() == {"upload_bytes", "download_bytes"}


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
    measured = "train loss 0.2500  validation accuracy 0.5000  this round's test accuracy 0.3750"
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


def test_slow_preprocessing_is_reported_now_and_then(config, monkeypatch):
    now = 0.0
    monkeypatch.setattr("jaxfed.host.terminal.time.monotonic", lambda: now)
    console = Console(width=120, highlight=False)
    with console.capture() as capture:
        progress = RunProgress(config.to_dict(), console)
        for done, seconds in enumerate((1.0, 30.0, 31.0, 60.0), start=1):
            now = seconds
            progress.prepared(done, 4)
    assert capture.get().splitlines() == [
        "preparing data, 2/4",
        "preparing data, 4/4",
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_steps_of_a_round_show_how_much_of_them_is_done(config, is_terminal):
    console = Console(force_terminal=is_terminal, width=160, highlight=False)
    with console.capture() as capture, RunProgress(config.to_dict(), console) as progress:
        progress.working_on("repeat 1/2 drift")
        progress._last_line = -1e9  # as after a while
        progress.within("pairs of points", 1500, 4000)
        progress._bar.refresh()
        progress.within("pairs of points", 4000, 4000)  # too early for another line
        finished = progress._bar.tasks[0].description
    shown = capture.get()
    assert finished == "repeat 1/2 drift"
    assert "repeat 1/2 drift, 1,500/4,000 pairs of points" in shown
    assert "4,000/4,000" not in shown
    assert is_terminal or shown.count("\n") == 1


def test_protocols_tell_of_their_progress(config, tmp_path, monkeypatch):
    """From the cross steps of a round to the lines of a run."""
    monkeypatch.setattr("jaxfed.host.terminal.QUIET_SECONDS", -1)
    config.algorithm, config.baselines, config.num_repeats, config.rounds = "xclp", (), 1, 1
    config.cohort_size, config.federation.num_clients, config.dataset.train_size = 0, 3, 60
    config.xclp.num_bits, config.xclp.hamming, config.xclp.row_sums = 64, "masked", "masked"
    config.xclp.influence = "columns"
    console = Console(width=120, highlight=False)
    with (
        console.capture() as capture,
        RunProgress(config.to_dict(), console) as progress,
        open_workdir(tmp_path, config.to_dict()) as workdir,
    ):
        Experiment(config, Simulation(config), workdir, progress, Interruption()).run()
    lines = [line for line in capture.get().splitlines() if line.startswith("repeat 1/1 xclp, ")]
    counted = [line.split(", ", 1)[1].split(" ", 1) for line in lines]
    assert {what for _, what in counted} == {"pairs of points", "uploads for row sums"}
    for what in ("pairs of points", "uploads for row sums"):
        done, total = [share for share, name in counted if name == what][-1].split("/")
        assert done == total


def test_pretrained_features_of_both_splits(config, monkeypatch):
    images = np.arange(60 * 4, dtype=np.uint8).reshape(60, 2, 2, 1)
    y = np.arange(60, dtype=np.int32) % 3
    data = Dataset("tiny", images[:40], y[:40], images[40:], y[40:], 3, ("a", "b", "c"))
    calls = []

    def features(images, *, progress, **settings):
        calls.append((len(images), settings))
        if len(images):
            progress(len(images))
        return images.reshape(-1, 4).astype(np.float32)

    monkeypatch.setattr("jaxfed.config.data.simulation.load", lambda name, **settings: data)
    monkeypatch.setattr("jaxfed.config.data.preprocessing.pretrained_features", features)
    config.preprocessing.kind = "pretrained"
    config.preprocessing.image_size = 64
    simulation = Simulation(config)
    reports: list[tuple[int, int]] = []
    federation = simulation.federation(0, lambda done, total: reports.append((done, total)))
    assert simulation.federation(1).x is federation.x
    np.testing.assert_array_equal(federation.x, images.reshape(60, 4))
    assert [num_images for num_images, _ in calls] == [40, 20]
    assert calls[1][1]["image_size"] == 64
    assert calls[1][1]["weights"] is None
    assert reports == [(40, 60), (60, 60)]
    new = np.concatenate(federation.partition.new)
    assert sorted(new.tolist()) == list(range(40, 60))


def test_a_part_of_the_data_is_the_same_in_every_repeat(config):
    config.dataset.train_size = 500
    simulation = Simulation(config)
    first, second = simulation.federation(0), simulation.federation(1)
    assert first.x is second.x
    assert first.x.shape == (500, 64)
    assert not np.array_equal(first.partition.labeled[0], second.partition.labeled[0])


def test_variants_of_the_federation(config):
    everything = Simulation(config).federation(0)
    config.federation.graph = "labeled"
    labeled = Simulation(config).federation(0)
    assert sum(map(len, labeled.partition.unlabeled)) == 0
    assert labeled.partition.labeled[3].tolist() == everything.partition.labeled[3].tolist()
    config.federation.left_out_client = 2
    left_out = Simulation(config).federation(0)
    assert [len(new) > 0 for new in left_out.partition.new] == [client == 2 for client in range(10)]
