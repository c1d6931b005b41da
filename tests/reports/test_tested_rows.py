"""Bold is what stays ahead on other test rows: a bootstrap over the rows of stored predictions."""

import csv
import gzip
import json

import numpy as np
import pytest
from small_workdirs import bold, make_run, metric

from jaxfed.experiment.store.records import PREDICTED, read_run
from jaxfed.reports import tables
from jaxfed.reports.comparison import is_ahead_on_other_rows


def workdir(place, truth, wrong, *, rows=None):
    """Three repeats in which each method is wrong on the first of its rows, `wrong` in number.

    `rows` are those of each repeat, by default the same.
    """
    rows = [np.arange(len(truth))] * 3 if rows is None else rows
    accuracy = {name: tuple(1 - many / len(rows[0]) for _ in rows) for name, many in wrong.items()}
    make_run(place, accuracy, algorithm="xclp")
    summary = json.loads((place / "summary.json").read_text())
    (place / "predictions").mkdir()
    for name, many in wrong.items():
        recalls = []
        for repeat, tested in enumerate(rows):
            label = np.where(np.arange(len(tested)) < many, 1 - truth[tested], truth[tested])
            right = label == truth[tested]
            recalls.append(np.mean([right[truth[tested] == c].mean() for c in (0, 1)]))
            with gzip.open(place / "predictions" / f"{name}-{repeat}.csv.gz", "wt") as stream:
                writer = csv.writer(stream)
                writer.writerow(PREDICTED)
                writer.writerows(
                    (-1, row, "test", a, 0.5, b)
                    for row, a, b in zip(tested, label, truth[tested], strict=True)
                )
                writer.writerow((0, 10**6, "labeled", 0, 0.5, 1))  # no test row
                writer.writerow((0, 10**6 + 1, "test", 0, 0.5, ""))  # of unknown class
        summary["algorithms"][name]["test_balanced_accuracy"] = metric(recalls)
    (place / "summary.json").write_text(json.dumps(summary))
    return place


def bold_in(place, column=1):
    return bold(tables.run_table(read_run(place), "r"), column)


@pytest.mark.parametrize("column", [1, 2])
def test_bold_survives_the_choice_of_test_rows(tmp_path, column):
    """4.5 points ahead in each of three seeds are one row of 22, or 90 of 2,000."""
    for size, alone in ((22, False), (2000, True)):
        wrong = {"xclp": size // 11, "fedavg": size // 11 + size // 22}
        place = workdir(tmp_path / str(size), np.arange(size) % 2, wrong)
        assert bold_in(place, column) == ({"XCLP"} if alone else {"XCLP", "FedAvg"})


def test_without_predictions_the_t_test_decides(tmp_path):
    truth = np.arange(22) % 2
    place = workdir(tmp_path / "r", truth, {"xclp": 2, "fedavg": 3})
    (place / "predictions" / "fedavg-1.csv.gz").unlink()
    assert bold_in(place) == {"XCLP"}
    other = workdir(tmp_path / "s", truth, {"xclp": 2, "fedavg": 3})
    summary = json.loads((other / "summary.json").read_text())
    summary["algorithms"]["fedavg"]["test_accuracy"] = metric([0.8] * 3)  # not that of the rows
    (other / "summary.json").write_text(json.dumps(summary))
    assert bold_in(other) == {"XCLP"}


@pytest.mark.parametrize("more", [2, 4, 16])
def test_the_bootstrap_is_that_of_independent_rows(tmp_path, more):
    """Of rows that repeats share each counts once: three repeats on the same rows say no more than one."""
    truth = np.arange(3000) % 2
    rows = np.random.default_rng(1).permutation(3000).reshape(3, 1000)
    run = read_run(workdir(tmp_path / "r", truth, {"xclp": 100, "fedavg": 100 + more}, rows=rows))
    shared = read_run(workdir(tmp_path / "s", truth[:1000], {"xclp": 100, "fedavg": 100 + more}))
    for found, repeats in ((run, 3), (shared, 1)):
        of = [found.results[name]["test_accuracy"] for name in ("xclp", "fedavg")]
        lower = repeats * more - 1.96 * np.sqrt(repeats * more)
        assert is_ahead_on_other_rows(*of, "test_accuracy") == (lower > 0)
