"""Differences between two workdirs of one experiment: over a network and simulated."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfed.experiment.store.workdir import Workdir

_LEAVES = "state/"
_MODELS = "state/learner."  # of clients, if each has its own


class Difference(NamedTuple):
    """Differences of the results of one method in one repeat.

    Fields:
        largest: largest absolute difference of an entry of the last state, infinite for other shapes or
            names; None without states.
        num_arrays: number of arrays that were compared.
        labels: number of predicted labels that differ; None without predictions.
        num_labels: number of predictions.
    """

    largest: float | None
    num_arrays: int
    labels: int | None
    num_labels: int

    def __str__(self) -> str:
        """One line, such as `max |difference| 0.0 of 4 arrays; 0 of 120 labels differ`."""
        states = "no states to compare"
        if self.largest is not None:
            states = f"max |difference| {self.largest:g} of {self.num_arrays} arrays"
        labels = "no labels to compare"
        if self.labels is not None:
            labels = f"{self.labels} of {self.num_labels} labels differ"
        return f"{states}; {labels}"


def compare(first: Path, second: Path, method: str, *, repeat: int = 0) -> Difference:
    """Compare the last states and the predictions of a method in two workdirs.

    The first one is that of a server, whose state has no rows for its clients' own states, and none of their
    models if each has its own.
    """
    here, there = (_last_state(path, method, repeat) for path in (first, second))
    largest = None
    for name in [name for name, rows in here.items() if rows.shape[:1] == (0,)]:
        del here[name]  # states of clients, which stay with them
        there.pop(name, None)
    if not any(name.startswith(_MODELS) for name in here):
        there = {name: rows for name, rows in there.items() if not name.startswith(_MODELS)}
    if here and there:
        largest = max(
            (_difference(here.get(n), there.get(n)) for n in {*here, *there}), default=0.0
        )
    tables = [_labels(path, method, repeat) for path in (first, second)]
    labels = None
    if all(tables):  # a server has no labels of its clients' points
        rows = [dict(table or {}) for table in tables]
        labels = sum(rows[0].get(point) != rows[1].get(point) for point in {*rows[0], *rows[1]})
    return Difference(largest, len(here), labels, len(tables[0] or {}))


def _last_state(workdir: Path, method: str, repeat: int) -> dict[str, np.ndarray]:
    """Return the arrays of a method's last state, or of its only one; {} if there is none."""
    files = Workdir(workdir)
    for is_last in (True, False):
        folder = files.final_state(method, repeat, last=is_last)
        if saved := sorted(folder.glob("*.npz")):
            with np.load(saved[-1]) as arrays:
                return {name: arrays[name] for name in arrays.files if name.startswith(_LEAVES)}
    return {}


def _difference(here: np.ndarray | None, there: np.ndarray | None) -> float:
    if here is None or there is None or here.shape != there.shape or here.dtype != there.dtype:
        return float("inf")
    if here.dtype.kind not in "biuf":
        return 0.0 if here.tobytes() == there.tobytes() else float("inf")
    if not here.size or np.array_equal(here, there, equal_nan=here.dtype.kind == "f"):
        return 0.0
    gaps = np.abs(here.astype(np.float64) - there.astype(np.float64))
    return float("inf") if np.isnan(gaps).any() else float(gaps.max())


def _labels(workdir: Path, method: str, repeat: int) -> dict[tuple[str, str], str] | None:
    """Return the label of each point, by its client and its number; None without predictions."""
    file = Workdir(workdir).predictions(method, repeat)
    if not file.is_file():
        return None
    with gzip.open(file, "rt", encoding="utf-8", newline="") as stream:
        return {(row["client"], row["index"]): row["label"] for row in csv.DictReader(stream)}
