"""What runs and sweeps left: read in a fixed order, measured over repeats, refused in a line."""

import pytest
from small_workdirs import ACCURACIES, make_run, make_sweep

from jaxfed.experiment.store.records import (
    Measurement,
    find,
    measure,
    read_metrics,
    read_run,
)


def test_deviation_is_that_of_a_sample():
    assert measure([1.0, 2.0, 6.0]) == Measurement(3.0, pytest.approx(7**0.5), (1.0, 2.0, 6.0))
    assert measure([0.5]).std is None


def test_results_are_in_a_fixed_order_and_flat(tmp_path):
    run = read_run(make_run(tmp_path / "r"))
    assert list(run.results) == ["xclp", "per_client_lp", "pooled_lp"]
    assert run.results["xclp"]["communication.upload_bytes"].mean == 1e6
    assert "undefined" not in run.results["xclp"]


def test_half_a_line_of_metrics_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"rou')
    assert read_metrics(tmp_path) == [{"round": 1}]


def test_find_takes_each_run_once(tmp_path):
    make_run(tmp_path / "a" / "deep" / "one")
    make_sweep(tmp_path / "s", [("p", {"seed": 1}, ACCURACIES)], {"seed": 7})
    found = find([tmp_path, tmp_path / "a", tmp_path / "s" / "p"])
    assert [run.name for run in found.runs] == ["one"]
    assert [sweep.name for sweep in found.sweeps] == ["s"]
