"""Which keys of a sweep are curves, and over what."""

from pathlib import Path

import pytest

from jaxfed.experiment.store.records import (
    PointRecord,
    Sweep,
)
from jaxfed.reports.sweeps import curves, swept_keys


def sweep_of(base, *overrides):
    points = tuple(PointRecord(str(index), values, None) for index, values in enumerate(overrides))
    return Sweep(Path("x"), "", base, points)


@pytest.mark.parametrize(
    ("base", "points", "expected", "rest"),
    [
        # One key at a time; the base is a point of both curves.
        (
            {"L": 4, "a": 9},
            [{"L": 8}, {"L": 4}, {"L": 2}, {"a": 1}],
            {("L",): [2, 4, 8], ("a",): [1, 9]},
            0,
        ),
        # Two lone points on different axes, off the base: nothing to join.
        ({"L": 4, "a": 9}, [{"L": 8}, {"a": 1}], {}, 2),
        # A grid: one family along the longer axis, and the other axis at the base.
        (
            {"L": 4, "a": 1},
            [{"L": length, "a": a} for a in (1, 2) for length in (2, 4, 8)],
            {("L",): [2, 4, 8], ("L", ("a", 2)): [2, 4, 8], ("a",): [1, 2]},
            0,
        ),
        # One is missing: not with every point.
        (
            {"L": 4, "a": 9, "g": "y"},
            [{"L": 8}, {"L": 4}, {"L": 2}, {"a": 1}, {"a": 1, "g": "x"}, {"g": "x"}],
            {("L",): [2, 4, 8], ("a",): [1, 9], ("g",): ["y", "x"]},
            1,
        ),
        # A key set to one and the same value everywhere is no axis.
        ({"L": 4, "a": 1}, [{"L": 2, "a": 5}, {"L": 4, "a": 5}], {("L",): [2, 4]}, 0),
        # Names keep their order, lists are values too.
        ({"t": [1]}, [{"t": [2]}, {"t": [1]}], {("t",): [[2], [1]]}, 0),
        ({"g": "x"}, [{"g": "y"}, {"g": "x"}], {("g",): ["y", "x"]}, 0),
        ({"L": 4}, [{"L": 4}], {}, 1),
    ],
)
def test_curves(base, points, expected, rest):
    sweep = sweep_of(base, *points)
    found = curves(sweep)
    values = [[sweep.value(point, curve.key) for point in curve.points] for curve in found]
    keys = [(curve.key, *curve.fixed.items()) for curve in found]
    assert dict(zip(keys, values, strict=True)) == expected
    drawn = {point.name for curve in found for point in curve.points}
    assert len(sweep.points) - len(drawn) == rest


def test_swept_keys_are_those_that_vary():
    assert swept_keys(sweep_of({"L": 4, "a": 1}, {"L": 4}, {"L": 2, "a": 1})) == ["L"]
