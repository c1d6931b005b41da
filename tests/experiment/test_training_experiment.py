"""Training through the round loop: selection by validation, stages, and being killed at any moment."""

import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console
from whole_figures import run_figures

from jaxfed.config import file as config_file
from jaxfed.config.assembly import Ingredients, make_algorithm
from jaxfed.config.check import check
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.sections import TrainingSection
from jaxfed.experiment.run import loop
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.run.simulate import Selected
from jaxfed.experiment.store.records import Run
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.interruption import Interruption
from jaxfed.host.parallel.workers import prefetched
from jaxfed.settings import names_of, settings_of
from jaxfed.training.pseudo_labels import pseudo_label

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


def test_a_state_that_has_been_watched_is_not_measured_again(config, tmp_path, monkeypatch):
    config.algorithm, config.num_repeats, config.rounds, config.baselines = "fedavg", 1, 2, ()
    config.training.labeled_only_rounds, config.dataset.validation_fraction = 0, 0.0
    config.evaluate_test, config.evaluate_every = True, 2
    asked = []

    def made(*arguments, **options):
        algorithm = make_algorithm(*arguments, **options)

        def evaluate(state, federation):
            asked.append(int(state.round))
            return algorithm.evaluate(state, federation)

        return algorithm._replace(evaluate=evaluate)

    monkeypatch.setattr(loop, "make_algorithm", made)
    _, records = run(config, tmp_path)
    assert asked == [0, 2]
    assert records[-1]["test_accuracy"] == records[-1]["round_test_accuracy"]


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
    federation = Simulation(config).federation(config.seed)
    algorithm = make_algorithm(config, "fedavg", federation)
    selected = Checkpoints(tmp_path / "states" / "fedavg-0").latest()
    state = selected.state(template=algorithm.init(jax.random.key(0), federation))
    model = Ingredients(config, federation).training().model
    predicted = np.argmax(model.apply(state.model, jnp.asarray(federation.x)), axis=1)
    for client, accuracy in enumerate(with_clients[0]["client_unlabeled_accuracy"]):
        points = federation.partition.unlabeled[client]
        assert accuracy == pytest.approx(np.mean(predicted[points] == federation.y[points]))


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


def test_without_a_validation_split_there_is_no_round_0(config, tmp_path):
    config.dataset.validation_fraction, config.rounds = 0.0, 2
    config.training.labeled_only_rounds = 1
    _, records = run(config, tmp_path)
    assert [r["round"] for r in records] == [1, 2]
    assert records[-1]["selected_round"] == 2


@pytest.mark.parametrize("stopped_after", [1, 4])
@pytest.mark.sample(1)
def test_selection_from_round_0_on_survives_a_stop(config, tmp_path, monkeypatch, stopped_after):
    """Before the first checkpoint, and after the one of round 4: the same lines and the same states."""
    config.training.learning_rate = 1e-9  # nothing moves, and the earlier of equals is selected
    run(config, tmp_path / "whole")

    def stop(progress, record, rounds):
        if record["round"] == stopped_after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunProgress, "finished_round", stop)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "parts")
    run(config, tmp_path / "parts")
    lines = without_times(tmp_path / "whole")
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4, 5, 6]
    assert lines[-1]["selected_round"] == 0
    assert without_times(tmp_path / "parts") == lines
    whole, parts = final_states(tmp_path / "whole"), final_states(tmp_path / "parts")
    assert whole.keys() == parts.keys() == {"fedavg_network-0", "fedavg_network-0-last"}
    for name, state in whole.items():
        for leaf, value in state.items():
            np.testing.assert_array_equal(value, parts[name][leaf])


def test_which_methods_need_labels_when(config):
    config.training.labeled_only_rounds = 1
    federation = Simulation(config).federation(0)

    def needed(name):
        return [make_algorithm(config, name, federation).course.needs_labels_in(r) for r in (1, 2)]

    for name in ("fedavg", "fedavg_per_client_lp"):
        assert needed(name) == [True, True]
    for name in ("fedavg_xclp", "fedavg_network", "fedsem", "fixmatch"):
        assert needed(name) == [True, False]
    config.fedprox.pseudo_label = "xclp"
    assert needed("fedprox") == [True, False]


def test_class_weights_are_label_propagations_alone(config, monkeypatch):
    """The authors' code: over the cohort for XCLP, over the client for per-client LP, else none."""

    def class_weighted(source, num_classes, *, within_clients):
        return "weighted", num_classes, within_clients

    monkeypatch.setattr(pseudo_label, "class_weighted", class_weighted)
    config.pseudo_label.class_weights = True
    sources = Ingredients(config, Simulation(config).federation(0)).training().pseudo_labels
    weighted = {name: source for name, source in sources.items() if isinstance(source, tuple)}
    assert weighted == {
        "xclp": ("weighted", 10, False),
        "xclp_head": ("weighted", 10, False),
        "xclp_prototypes": ("weighted", 10, False),
        "per_client_lp": ("weighted", 10, True),
    }


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (role, name)
        for role in ("optimizer", "server_optimizer")
        for name in names_of(settings_of(TrainingSection)[role].hint)
    ],
)
@pytest.mark.sample(1)
def test_every_optimizer_takes_steps_at_clients_and_server(config, role, name):
    """Under strict promotion of dtypes, with a traced rate, on float32 parameters."""
    config.algorithm, config.rounds = "fedavg", 2
    config.training[role] = name
    config.training.learning_rate = config.training.server_learning_rate = 0.01
    config.model.hidden = ()
    federation = Simulation(config).federation(0)
    algorithm = make_algorithm(config, "fedavg", federation)
    start = algorithm.init(jax.random.key(0), federation)
    state, _ = algorithm.round(start, federation.cohort([0, 1]), jax.random.key(1))
    change = optax.tree.norm(jax.tree.map(jnp.subtract, state.model, start.model))
    assert 0 < float(change) < np.inf


def test_all_labels_are_known_where_asked(config):
    few = Simulation(config).federation(0)
    config.federation.reveal_labels = True
    known = Simulation(config).federation(0)
    for client in range(few.num_clients):
        np.testing.assert_array_equal(known.points(client), few.points(client))
    assert (known.cohort().y[known.cohort().mask] >= 0).all()


def test_prefetching_keeps_the_order_and_stays_one_ahead():
    made, is_two_begun = [], threading.Event()

    def make(key):
        made.append(key)
        if key == 2:
            is_two_begun.set()
        if key == 3:
            raise KeyError(key)
        return key * 10

    items = prefetched(make, range(5))
    assert next(items) == 0
    assert next(items) == 10
    assert is_two_begun.wait(timeout=10)  # while 10 is in use
    assert max(made) <= 2
    assert next(items) == 20
    with pytest.raises(KeyError):
        next(items)
    assert list(prefetched(make, [])) == []


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


def without_times(path):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
