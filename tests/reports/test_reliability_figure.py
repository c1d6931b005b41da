"""Reliability diagrams: out of predictions on disk, where a method is calibrated."""

import json

import numpy as np
import pytest
from small_workdirs import make_run
from whole_figures import run_figures

from jaxfed.experiment.run.save_outputs import save_predictions
from jaxfed.experiment.store.records import read_run
from jaxfed.federation.algorithm import Predictions
from jaxfed.reports.figures import reliabilities


@pytest.fixture
def workdir(tmp_path):
    """Two repeats of a calibrated method; a tenth of 100 new points a bin is as right as it says."""
    path = make_run(tmp_path / "run", {"xclp": (0.5, 0.5), "client_knn": (0.5, 0.5)})
    summary = json.loads((path / "summary.json").read_text())
    one = {"mean": 4.0, "std": 0.0, "values": [4.0, 4.0]}
    summary["algorithms"]["xclp"]["calibration"] = {"sharpness": one}
    (path / "summary.json").write_text(json.dumps(summary))
    for repeat in range(2):
        number = np.arange(200)
        right = np.where(number < 100, number % 2 == 0, number % 10 > 0)
        said = Predictions(
            client=np.zeros(203, np.int32),
            example=np.arange(203),
            role=np.array(["new"] * 200 + ["labeled", "unlabeled", "new"]),
            label=np.append(np.where(right, 1, 0), [0, 0, 1]).astype(np.int32),
            confidence=np.append(np.where(number < 100, 0.5, 0.9), [0.0] * 3).astype(np.float32),
        )
        truth = np.append(np.ones(202, np.int64), -1)  # of the last nobody knows the class
        file = path / "predictions" / f"xclp-{repeat}.csv.gz"
        save_predictions(file, said, truth, np.arange(203))
    return path


def test_bins_are_of_new_points_of_all_repeats(workdir):
    found = reliabilities(read_run(workdir))
    assert list(found) == ["xclp"]  # the other has left no predictions
    np.testing.assert_array_equal(found["xclp"].num_points, [200, 200])
    np.testing.assert_allclose(found["xclp"].confidence, [0.5, 0.9])
    np.testing.assert_allclose(found["xclp"].accuracy, [0.5, 0.9])


def test_they_are_drawn_beside_the_diagonal(workdir):
    figure = run_figures(read_run(workdir))["reliability"]
    diagonal, own = figure.axes[0].lines[:2]
    np.testing.assert_allclose(diagonal.get_xydata(), [[0, 0], [100, 100]])
    np.testing.assert_allclose(own.get_xydata(), [[50, 50], [90, 90]])
    assert own.get_label() == "XCLP"
