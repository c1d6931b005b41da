"""Measures on test rows, of methods and of clients: scikit-learn's, with intervals over the rows."""

import csv
import gzip

import numpy as np
import pytest
from sklearn import metrics as sk
from small_workdirs import make_run

from jaxfed.experiment.store.records import read_run
from jaxfed.reports.comparison import Rows
from jaxfed.reports.quality import intervals, point_measures, quality_tables

RNG = np.random.default_rng(0)


def drawn(number, num_classes, num_clients=1, right=0.8):
    """Rows of which the given share has the right label; -1 is none."""
    truth = RNG.integers(num_classes, size=number)
    label = np.where(RNG.random(number) < right, truth, RNG.integers(-1, num_classes, size=number))
    sure = RNG.integers(51, 100, size=number) / 100
    client = RNG.integers(num_clients, size=number) if num_clients > 1 else np.full(number, -1)
    return Rows(client, np.arange(number), label, sure, truth)


@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_measures_are_scikit_learns(num_classes):
    rows = drawn(200, num_classes)
    if num_classes == 4:
        rows = rows.of(rows.truth != 3)  # a class without test rows, which labels may name
    found = point_measures(rows, rows.client * 0, num_classes).loc[0]
    there = np.unique(rows.truth)
    expected = {
        "accuracy": sk.accuracy_score(rows.truth, rows.label),
        "balanced_accuracy": sk.balanced_accuracy_score(rows.truth, rows.label),
        "macro_f1": sk.f1_score(rows.truth, rows.label, labels=there, average="macro"),
    }
    if num_classes == 2:
        recalls = sk.recall_score(rows.truth, rows.label, labels=[0, 1], average=None)
        second = np.where(rows.label == 1, rows.confidence, 1 - rows.confidence)
        second[rows.label < 0] = 0.5
        expected |= dict(zip(("specificity", "sensitivity"), recalls, strict=True))
        expected["auroc"] = sk.roc_auc_score(rows.truth, second)
    assert {*found.index} == {*expected, "calibration_error", "support"}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name


def test_a_measure_of_a_class_that_is_absent_is_missing():
    """Not 0, as a recall without rows would be; a client with rows of one class has the other measures."""
    rows = drawn(40, 2, num_clients=4)
    rows = rows.of((rows.client != 1) | (rows.truth == 1))
    found = point_measures(rows._replace(confidence=rows.confidence * np.nan), rows.client, 2)
    assert found.loc[1].isna().sum() == 3  # specificity, AUROC, calibration error
    assert (found.support == np.bincount(rows.client)).all()
    assert found.drop(1)[["sensitivity", "specificity", "auroc"]].notna().all(axis=None)
    assert intervals([rows.of(rows.client == 1)], 2)["specificity"].isna().all()


def test_intervals_are_over_rows_that_repeats_share():
    """Of a share p of n rows 1.96 sqrt(p (1 - p) / n) to each side, however often they are tested on."""
    rows = drawn(800, 2)
    p = point_measures(rows, rows.client * 0, 2).at[0, "accuracy"]
    low, high = intervals([rows], 2)["accuracy"]
    width = 2 * 1.96 * np.sqrt(p * (1 - p) / 800)
    assert high - low == pytest.approx(width, rel=0.1)
    assert low < p < high
    assert [*intervals([rows] * 3, 2)["accuracy"]] == pytest.approx([low, high])
    apart = [rows, rows._replace(row=rows.row + 800)]
    low, high = intervals(apart, 2)["accuracy"]
    assert high - low == pytest.approx(width / np.sqrt(2), rel=0.1)


def with_predictions(path, num_clients):
    make_run(path, {"xclp": (0.8, 0.8)})
    (path / "predictions").mkdir()
    for repeat in range(2):
        rows = drawn(60, 2, num_clients)
        with gzip.open(path / "predictions" / f"xclp-{repeat}.csv.gz", "wt", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "index", "role", "label", "confidence", "truth"])
            for client, row, label, sure, truth in zip(*rows, strict=True):
                writer.writerow([client, row, "new", label, sure, truth])
            writer.writerow([0, 99, "labeled", 0, 1.0, 1])
    return read_run(path)


def test_tables_have_methods_and_clients_with_their_support(tmp_path):
    methods, clients = quality_tables(with_predictions(tmp_path / "r", 3), ("a", "b"))
    assert [*methods.texts][:3] == ["method", "test rows", "Accuracy [%]"]
    assert {"Sensitivity [%]", "AUROC [%]"} <= {*methods.texts}
    name, support, accuracy, *_ = methods.texts.iloc[0]
    assert (name, support) == ("XCLP", "60")
    assert " to " in accuracy
    record = methods.records.set_index("metric").loc["accuracy"]
    assert record["low"] < record["mean"] < record["high"]
    assert [*clients.texts["client"]] == ["0", "1", "2"]
    of_first = clients.records.query("client == '0'").set_index("metric")
    assert {"balanced_accuracy", "sensitivity", "calibration_error"} <= {*of_first.index}
    assert of_first.at["accuracy", "support"] == int(clients.texts["test rows"][0])
    (alone,) = quality_tables(with_predictions(tmp_path / "s", 1), ("a", "b"))
    assert len(alone.texts) == 1
    assert not [*quality_tables(read_run(make_run(tmp_path / "t")), ("a", "b"))]
