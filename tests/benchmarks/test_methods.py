"""Contests of whole methods: labelings, and the start of the main job."""

import time

import numpy as np
import pytest

from benchmarks.methods import deployment, labeling_cost, start
from benchmarks.timing.contest import run_contest
from benchmarks.timing.record import as_line


@pytest.mark.slow
def test_xclp_costs_stand_beside_per_client_lps_and_the_papers(short, monkeypatch):
    monkeypatch.setattr(labeling_cost, "CASES", ((3, 20), (2, 40)))
    monkeypatch.setattr(labeling_cost, "MOST_MASKED", 60)
    contests = list(labeling_cost.labeling_cost(with_peers=False))
    tasks = [drawn.task for drawn in contests]
    stages = ["codes (clients)", "Hamming kNN", "graph (server)", "conjugate gradient (server)"]
    plain = [f"XCLP, {name}" for name in ("plaintext", *stages)]
    assert tasks == [*plain, "XCLP, masked", *plain]
    labels = []
    for drawn in (contests[0], contests[5]):
        assert drawn.case == {"clients": 3, "points": 20, "n": 60, "d": 128}
        labels.append(np.concatenate([own.labels for own in drawn.ours().predictions]))
        row = run_contest(drawn, {})
        figures = {name: figure["measured"] for name, figure in row["figures"].items()}
        assert row["peers"]["per-client LP"]["ratio"] > 0
        assert figures["ms a client"] == pytest.approx(1e3 * row["median_seconds"]["jaxfed"] / 3)
        # 3 clients of 20 points, two of them labeled: codes, 60 x 60 / 2 distances, inverse, products.
        assert figures["operations by the paper"] == pytest.approx(
            60 * 128 * 4096 + 4096 * 1800 + 60**3 + 9 * 10 * 2 * 20
        )
        assert figures["operations of per-client LP by the paper"] == pytest.approx(
            3 * (128 * 200 + 20**3 + 10 * 2 * 20)
        )
        assert figures["L p / d"] == 96
        assert figures["MB up"] > 60 * 512 / 1e6
        assert "operations by the paper" in as_line(row)
    np.testing.assert_array_equal(*labels)
    np.testing.assert_array_equal(contests[0].peers["per-client LP"]().shape, (3, 20))


@pytest.mark.slow
def test_a_start_is_timed_to_its_workdir_and_to_its_first_result(monkeypatch, tmp_path):
    monkeypatch.setattr(start, "CONFIG", f"{start.CONFIG}:smoke")
    begun = time.perf_counter()
    seconds = start.started(tmp_path)
    assert 0.5 < seconds.workdir < seconds.result < time.perf_counter() - begun
    assert any(tmp_path.iterdir())  # the next start finds its programs


def test_a_start_without_a_result_is_an_error(monkeypatch):
    monkeypatch.setattr(start, "CONFIG", "")
    with pytest.raises(RuntimeError, match="status 2"):
        start.started(None)


def test_a_federation_is_played_once_for_both_of_its_figures(monkeypatch):
    pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")
    played = []

    def play(name, first, steady):
        def played_once(kept):
            played.append(name)
            return deployment.Played(first, steady, 0.9)

        return played_once

    monkeypatch.setattr(deployment, "_ours", play("ours", 10.0, 2.0))
    monkeypatch.setattr(deployment, "_plain", play("plain", 15.0, 6.0))
    monkeypatch.setattr(deployment, "SAMPLES", 2)
    rows = [run_contest(each, {}) for each in deployment.deployment(with_peers=True)]
    assert played == ["ours", "plain"] * 3
    assert [row["median_seconds"]["jaxfed"] for row in rows] == [2.0, 10.0]
    assert [row["peers"]["flower"]["ratio"] for row in rows] == [3.0, 1.5]
