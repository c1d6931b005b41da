"""What tables say of their settings, of rows that another point ran, and by which measure they judge."""

import json

import pytest
from small_workdirs import make_run, make_sweep, metric

from jaxfed.experiment.store.records import read_run, read_sweep
from jaxfed.reports import tables
from jaxfed.reports.provenance import keys_read, provenance
from jaxfed.reports.report import build


def trained(path, names, **settings):
    """A run in which these methods train a model: their results have a loss."""
    make_run(path, dict.fromkeys(names, (0.5, 0.6)), **settings)
    summary = json.loads((path / "summary.json").read_text())
    for name in names:
        summary["algorithms"][name]["train_loss"] = metric((1.0, 2.0))
    (path / "summary.json").write_text(json.dumps(summary))
    return read_run(path)


TRAINING = {
    "rounds": 100,
    "cohort_size": 0,  # the default, as that of the next
    "model__name": "mlp",
    "training__optimizer": "adam",
    "training__epochs": 7,
    "training__local_steps": 0,
    "xclp__alpha": 0.9,
}
SHARED = ["rounds=100", "training.optimizer=adam", "training.epochs=7"]
PROBLEM = ["dataset.name=digits", "federation.num_clients=2"]


@pytest.mark.parametrize(
    ("methods", "settings", "expected"),
    [
        (["fedavg"], {}, SHARED),
        (["fedavg"], {"training__local_steps": 9}, [*SHARED[:2], "training.local_steps=9"]),
        (["fedavg_xclp", "fedavg"], {}, [*SHARED, "xclp.alpha=0.9"]),
        (["fedprox"], {"fedprox__mu": 0.1}, [*SHARED, "fedprox.mu=0.1"]),
        (["fedprox"], {"fedprox__mu": 0.01, "fedprox__pseudo_label": "none"}, SHARED),
        (
            ["fedprox"],
            {"fedprox__pseudo_label": "xclp_prototypes"},
            [*SHARED, "xclp.alpha=0.9", "fedprox.pseudo_label=xclp_prototypes"],
        ),
        (
            ["fedadam"],
            {"fedadam__algorithm": "fedavg", "fedadam__training__optimizer": "sgd"},
            [*SHARED[::2], "fedadam.algorithm=fedavg", "fedadam.training.optimizer=sgd"],
        ),
    ],
)
def test_settings_off_their_defaults_that_a_method_reads_are_listed(
    tmp_path, methods, settings, expected
):
    run = trained(tmp_path / "r", methods, **(TRAINING | settings))
    said = dict(provenance([run]))["config"].split(", ")
    assert sorted(said) == sorted([*PROBLEM, *expected])


def test_a_key_touches_the_methods_that_read_it(tmp_path):
    methods = ["xclp", "mine", "per_client_lp", "client_knn", "fedavg", "fedavg_per_client_lp"]
    settings = {"mine__algorithm": "xclp", "mine__alpha": 0.5, "per_client_lp__alpha": 0.99}
    run = trained(tmp_path / "r", methods, **settings)
    touched = {
        key: {method for method in methods if key in keys_read(run, method)}
        for key in ("xclp.alpha", "mine.alpha", "training.epochs", "rounds", "dataset.name", "seed")
    }
    assert touched == {
        "xclp.alpha": {"xclp", "per_client_lp", "fedavg_per_client_lp"},
        "mine.alpha": {"mine"},
        "training.epochs": {"fedavg", "fedavg_per_client_lp"},
        "rounds": {"fedavg", "fedavg_per_client_lp"},
        "dataset.name": {*methods},
        "seed": set(),
    }


def balanced_too(path):
    """Adds a balanced accuracy to all results of a run."""
    summary = json.loads((path / "summary.json").read_text())
    for metrics in summary["algorithms"].values():
        metrics["test_balanced_accuracy"] = metric((0.3, 0.4, 0.5))
        metrics["worst_client_test_accuracy"] = metric((0.1, 0.2, 0.3))
    (path / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("papers", "shown"),
    [
        (["xclp/1"], "test_balanced_accuracy"),
        (["xclp/2", "xclp/3"], "test_balanced_accuracy"),
        (["xclp/4"], "test_accuracy"),
        ([""], "test_accuracy"),
        (["", "xclp/1"], "test_accuracy"),
    ],
)
def test_the_measure_is_that_of_the_papers_table(tmp_path, papers, shown):
    for number, paper in enumerate(papers):
        balanced_too(make_run(tmp_path / str(number), paper_table=paper, seed=number))
    runs = [read_run(tmp_path / str(number)) for number in range(len(papers))]
    assert tables.primary_metric(runs) == shown


def test_remarks_of_a_run_are_marked_in_its_tables(tmp_path):
    reason = "no round gave a pseudo-label any weight, so it trained on given labels alone"
    accuracies = dict.fromkeys(("xclp", "fedavg_xclp", "fedsem"), (0.5, 0.6))
    make_sweep(
        tmp_path / "s",
        [(f"{a}", {"xclp.alpha": a}, accuracies) for a in (0.5, 0.9)],
        {"xclp.alpha": 0.5},
    )
    file = tmp_path / "s" / "0.5" / "summary.json"
    remarks = [f"fedavg_xclp in repeats 1, 2: {reason}", f"fedsem in repeat 2: {reason}"]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"remarks": remarks}))
    table = tables.run_table(read_run(file.parent), "r")
    rows = ["XCLP", "FedAvg + XCLP ‡", "FedSem ‡"]
    assert [*table.texts.iloc[:3, 0]] == rows
    assert f"‡ FedAvg + XCLP in repeats 1, 2; FedSem in repeat 2: {reason}." in table.caption
    swept = build([tmp_path / "s"])[0].tables[0]
    assert [*swept.texts["FedAvg + XCLP"]] == ["55.00 ± 7.07 ‡", "55.00 ± 7.07"]
    assert f"‡ FedAvg + XCLP; FedSem: {reason}." in swept.caption


def test_rows_that_another_point_ran_are_marked(tmp_path):
    xclp, both = {"xclp": (0.5, 0.7)}, {"xclp": (0.6, 0.8), "client_knn": (0.4, 0.5)}
    points = [("a", {"xclp.alpha": 0.5}, both), ("b", {"xclp.alpha": 0.9}, xclp)]
    make_sweep(tmp_path / "s", points, {"xclp.alpha": 0.99})
    file = tmp_path / "s" / "sweep.json"
    content = json.loads(file.read_text())
    content["points"][1]["reused"] = {"client_knn": "a"}
    file.write_text(json.dumps(content))
    (section,) = build([tmp_path / "s"])
    table = section.tables[0]
    assert [*table.texts["Client kNN"]] == ["45.00 ± 7.07", "45.00 ± 7.07 †"]
    assert "† Run once, at another point" in table.caption
    # Seed by seed: 0.5 - 0.4, 0.7 - 0.5
    assert section.tables[1].texts.iloc[1, -1] == "+15.00 ± 5.00"
    workdirs = table.records.query("algorithm == 'client_knn'")["workdir"]
    assert set(workdirs) == {str(tmp_path / "s" / "a")}
    # Until the other point has finished there is nothing to stand for it.
    (tmp_path / "s" / "a" / "summary.json").unlink()
    assert [list(p.run.results) for p in read_sweep(tmp_path / "s").points] == [[], ["xclp"]]
