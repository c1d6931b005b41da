"""Settings of a sweep that validation chooses, without test labels, in a report."""

import json

import pytest
from small_workdirs import make_sweep, metric

from jaxfed.config import file as config_file
from jaxfed.experiment.store.records import read_sweep
from jaxfed.reports.report import write_report
from jaxfed.reports.sweeps import validated_settings


def measured(path, **of_method):
    """Add metrics to a workdir's summary: method -> metric -> values, nested as a round reports them."""
    summary = json.loads((path / "summary.json").read_text())
    for algorithm, metrics in of_method.items():
        summary["algorithms"][algorithm] |= metrics
    (path / "summary.json").write_text(json.dumps(summary))


# (alpha, labels) -> method -> (validation, test) of three seeds
LABELS, GIVEN = 100, 0.99
ACCURACIES = {
    (0.99, 100): {"fedavg_xclp": (0.7, 0.70), "fedavg_per_client_lp": (0.5, 0.50)},
    (0.9, 100): {"fedavg_xclp": (0.6, 0.90), "fedavg_per_client_lp": (0.6, 0.58)},
    (0.5, 100): {"fedavg_xclp": (0.7, 0.80), "fedavg_per_client_lp": (0.4, 0.99)},
    (0.99, 20): {"fedavg_xclp": (0.3, 0.30), "fedavg_per_client_lp": (0.2, 0.25)},
    (0.9, 20): {"fedavg_xclp": (0.4, 0.20), "fedavg_per_client_lp": (0.2, 0.29)},
}


@pytest.fixture
def sweep(tmp_path):
    points = [
        (
            f"{alpha}-{labels}",
            {"xclp.alpha": alpha, "federation.num_labeled": labels},
            {name: (test - 0.01, test, test + 0.01) for name, (_, test) in methods.items()},
        )
        for (alpha, labels), methods in sorted(ACCURACIES.items())
    ]
    points.append(("unfinished", {"xclp.alpha": 0.1, "federation.num_labeled": 100}, None))
    base = {"xclp.alpha": GIVEN, "federation.num_labeled": LABELS}
    path = make_sweep(tmp_path / "s", points, base)
    for (alpha, labels), methods in ACCURACIES.items():
        measured(
            path / f"{alpha}-{labels}",
            **{
                name: {"selected_validation_accuracy": metric([validation] * 3)}
                for name, (validation, _) in methods.items()
            },
        )
    return path


def test_validation_chooses_each_methods_point_and_the_test_set_does_not(sweep):
    table = validated_settings(read_sweep(sweep), "test_accuracy", "t")
    shown = {(a, b): row for a, b, *row in table.texts.itertuples(index=False)}
    at, gained = "propagation alpha {}".format, "{} ± 0.00".format
    xclp, other = "FedAvg + XCLP", "FedAvg + per-client LP"
    expected = {
        # Of equal validation accuracies the given setting, though 0.5 comes first and is better.
        ("100", xclp): (70, at(0.99), 70, 70, "0.00"),
        # Not 0.5, which is best on the test set alone.
        ("100", other): (50, at(0.9), 60, 58, "+8.00"),
        ("20", xclp): (30, at(0.9), 40, 20, "−10.00"),  # It may get worse.
        ("20", other): (25, at(0.99), 20, 25, "0.00"),
    }
    assert shown == {
        key: [f"{a}.00 ± 1.00", alpha, f"{v}.00 ± 0.00", f"{b}.00 ± 1.00", gained(gain)]
        for key, (a, alpha, v, b, gain) in expected.items()
    }
    bold = dict(zip(shown, table.best.iloc[:, [2, 5]].itertuples(index=False), strict=True))
    assert bold["100", "FedAvg + XCLP"] == (True, True)
    assert bold["20", "FedAvg + XCLP"] == (True, False)
    assert "no test label takes part" in table.caption
    assert {*table.records["algorithm"]} == {"fedavg_xclp", "fedavg_per_client_lp"}
    assert "chosen by validation" in write_report([sweep]).read_text()


@pytest.mark.parametrize(
    ("key", "values", "choosing"),
    [
        ("training.learning_rate", (0.01, 0.1), {"FedAvg"}),
        ("learner.name", ("decision_tree", "xgboost"), {"Each client alone"}),
    ],
)
def test_nothing_is_chosen_for_a_method_whose_learners_do_not_read_the_key(
    tmp_path, key, values, choosing
):
    """Trees have no learning rate, and FedAvg no trees."""
    accuracies = {"fedavg": (0.5, 0.6, 0.7), "local_learning": (0.4, 0.5, 0.6)}
    points = [(str(value), {key: value}, accuracies) for value in values]
    path = make_sweep(tmp_path / "s", points, {key: values[0]})
    for value in values:
        settings = "algorithm=fedavg", "learner.name=decision_tree", f"{key}={value}"
        config = config_file.load("ml_collections_configs/xclp_digits.py", settings)
        (path / str(value) / "config.json").write_text(json.dumps(config.to_dict()))
        validated = {"selected_validation_accuracy": metric([0.5] * 3)}
        measured(path / str(value), fedavg=validated, local_learning=validated)
    table = validated_settings(read_sweep(path), "test_accuracy", "t")
    assert {*table.texts["method"]} == choosing


def test_there_is_no_table_where_nothing_is_chosen(sweep, tmp_path):
    unvalidated = make_sweep(
        tmp_path / "u",
        [(f"a{alpha}", {"xclp.alpha": alpha}, {"xclp": (0.5, 0.6, 0.7)}) for alpha in (0.5, 0.9)],
        {"xclp.alpha": 0.99},
    )
    assert validated_settings(read_sweep(unvalidated), "test_accuracy", "t") is None
    content = json.loads((sweep / "sweep.json").read_text())
    content["points"] = [p for p in content["points"] if p["overrides"]["xclp.alpha"] == 0.99]
    (sweep / "sweep.json").write_text(json.dumps(content))
    assert validated_settings(read_sweep(sweep), "test_accuracy", "t") is None
