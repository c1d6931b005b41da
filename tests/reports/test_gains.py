"""What the main method gains over every other one, point by point of a sweep."""

import json

import pytest
from small_workdirs import ACCURACIES, PER_CLIENT, XCLP, make_sweep, metric

from jaxfed.reports.report import build

KEY = "federation.labeled_fraction"
EQUAL = {**ACCURACIES, "per_client_lp": XCLP}
BEHIND = {**ACCURACIES, "xclp": PER_CLIENT, "per_client_lp": XCLP}


@pytest.fixture
def sweep(tmp_path):
    points = [
        (f"{fraction}", {KEY: fraction}, accuracies)
        for fraction, accuracies in ((0.1, ACCURACIES), (0.2, EQUAL), (0.5, BEHIND), (0.7, None))
    ]
    return make_sweep(tmp_path / "s", points, {KEY: 0.1})


def test_by_hand(sweep):
    (section,) = build([sweep])
    accuracies, gains = section.tables
    assert accuracies.title.endswith("test accuracy [%]")
    assert gains.title.endswith("what XCLP gains in test accuracy [%]")
    assert [*gains.texts] == ["labeled fraction", "over Per-client LP", "over LP on pooled data"]
    texts, best = gains.texts.set_index("labeled fraction"), gains.best.to_numpy()[:, 1:]
    # Seed by seed 0.10, 0.08, 0.12 and -0.10, -0.06, -0.02: deviations 0.02 and 0.04 over sqrt(3).
    assert [*texts.loc["0.1"]] == ["+10.00 ± 1.15", "−6.00 ± 2.31"]
    assert [*texts.iloc[1:, 0]] == ["0.00 ± 0.00", "−10.00 ± 1.15", "1 of 3", "1 of 3"]
    assert [*zip(*best.nonzero(), strict=True)] == [(0, 0)]
    assert [*texts.iloc[-2:, 1]] == ["0 of 3", "3 of 3"]
    assert [*texts.index] == ["0.1", "0.2", "0.5", "ahead", "behind"]


@pytest.mark.parametrize(("step", "is_ahead"), [(0.01, False), (0.005, True)])
def test_ahead_is_by_two_errors(tmp_path, step, is_ahead):
    """By 0.01 in the mean: 1.7 or 3.5 standard errors, step / sqrt(3)."""
    other = tuple(x - d for x, d in zip(XCLP, (0.01 - step, 0.01, 0.01 + step), strict=True))
    points = [(f"{f}", {KEY: f}, {**ACCURACIES, "per_client_lp": other}) for f in (0.1, 0.2)]
    (section,) = build([make_sweep(tmp_path / "s", points, {KEY: 0.1})])
    gains = section.tables[1]
    assert gains.best.iloc[0, 1] == is_ahead
    assert gains.texts.iloc[-2, 1] == ("2 of 2" if is_ahead else "0 of 2")


@pytest.mark.parametrize(("apart", "number"), [(0.015, 2), (0.025, 4)])
def test_unequal_classes_have_balanced_accuracy_too(sweep, apart, number):
    """Where no method differs by two points in the two, one table says it all."""
    for path in sweep.glob("*/summary.json"):
        summary = json.loads(path.read_text())
        for method in summary["algorithms"].values():
            mean = method["test_accuracy"]["mean"]
            method["test_balanced_accuracy"] = metric([mean - apart] * 3)
        path.write_text(json.dumps(summary))
    (section,) = build([sweep])
    assert len(section.tables) == number
    assert ("balanced" in section.tables[-1].title) == (number == 4)
