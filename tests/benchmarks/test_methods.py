"""Contests of whole methods: labelings, and the start of the main job."""

import numpy as np
import pytest

from benchmarks.methods import labeling_cost
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
