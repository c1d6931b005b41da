"""A network run beside its simulation: states and labels that differ."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfed.experiment.store.records import read_predictions
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.flower.client.client_data import LABELS, TEST, TRAIN
from jaxfed.host.safe_files import arrays_of

_LEAVES = "state/"
_MODELS = "state/learner."  # of clients, if each has its own
_FILES = {"labeled": TRAIN, "unlabeled": TRAIN, "new": TEST}  # role of a client's point -> its file


class Difference(NamedTuple):
    """Differences of the results of one method in one repeat.

    Fields:
        largest: largest absolute difference of an entry of the last state, infinite for other shapes or
            names; None without states.
        num_arrays: number of arrays that were compared.
        labels: number of predicted labels that differ; None without predictions.
        num_labels: number of points with a label in one of the two.
    """

    largest: float | None
    num_arrays: int
    labels: int | None
    num_labels: int

    def __str__(self) -> str:
        """One line, such as `max |difference| 0.0 of 4 arrays; 0 of 120 labels differ`."""
        states, labels = "no states to compare", "no labels to compare"
        if self.largest is not None:
            states = f"max |difference| {self.largest:g} of {self.num_arrays} arrays"
        if self.labels is not None:
            labels = f"{self.labels} of {self.num_labels} labels differ"
        return f"{states}; {labels}"

    @property
    def is_none(self) -> bool:
        """True if no entry and no label differs."""
        return not self.largest and not self.labels


def compare(first: Path, second: Path, method: str, *, nodes: Path | None = None) -> Difference:
    """Compare the last states and the predictions of a method in two workdirs.

    The first one is that of a server, whose state has no rows for its clients' own states, and none of their
    models if each has its own. Labels that stay with the clients are in their folders, `nodes`/NUMBER, if
    these are here: row i of a client's train.npz is its training example i in the simulation, row i of
    test.npz its new point i.
    """
    here, there = (_last_state(path, method) for path in (first, second))
    largest = None
    # States of clients, which stay with them; a table has several arrays, NAME and NAME@...
    own = {name for name, rows in here.items() if rows.shape[:1] == (0,)}
    here, there = (
        {name: rows for name, rows in side.items() if name.partition("@")[0] not in own}
        for side in (here, there)
    )
    if not any(name.startswith(_MODELS) for name in here):
        there = {name: rows for name, rows in there.items() if not name.startswith(_MODELS)}
    if here and there:
        largest = max(
            (_difference(here.get(n), there.get(n)) for n in {*here, *there}), default=0.0
        )
    tables = [_labels(path, method) for path in (first, second)]
    if nodes is not None and not tables[0]:  # a server has no labels of its clients' points
        tables = [_labels_at_clients(nodes), _labels(second, method, by_file=True)]
    labels, points = None, {*tables[0], *tables[1]}
    if all(tables):
        labels = sum(tables[0].get(point) != tables[1].get(point) for point in points)
    return Difference(largest, len(here), labels, len(points))


def _last_state(workdir: Path, method: str) -> dict[str, np.ndarray]:
    """Return the arrays of a method's last state, or of its only one; {} if there is none."""
    files = Workdir(workdir)
    for is_last in (True, False):
        folder = files.final_state(method, 0, last=is_last)
        if saved := sorted(folder.glob("*.npz")):
            arrays = arrays_of(saved[-1])
            return {name: array for name, array in arrays.items() if name.startswith(_LEAVES)}
    return {}


def _difference(here: np.ndarray | None, there: np.ndarray | None) -> float:
    if here is None or there is None or here.shape != there.shape or here.dtype != there.dtype:
        return float("inf")
    if here.tobytes() == there.tobytes():
        return 0.0
    if here.dtype.kind not in "biuf":
        return float("inf")
    gaps = np.abs(here.astype(np.float64) - there.astype(np.float64))
    gaps = gaps[~(np.isnan(here) & np.isnan(there))]
    return float("inf") if np.isnan(gaps).any() else float(gaps.max(initial=0.0))


def _labels(workdir: Path, method: str, *, by_file: bool = False) -> dict[tuple[str, ...], str]:
    """Return the label of each point, by its client and its number; {} without predictions.

    `by_file`: of the clients' points alone, by the client, file and row that `deal` gives them.
    """
    found: dict[tuple[str, ...], str] = {}
    next_row: Counter[tuple[str, str]] = Counter()
    for row in read_predictions(workdir, method, 0) or ():
        if not by_file:
            found[row["client"], row["index"]] = row["label"]
        elif file := _FILES.get(row["role"]):
            place = row["client"], file
            found[*place, str(next_row[place])] = row["label"]
            next_row[place] += 1
    return found


def _labels_at_clients(nodes: Path) -> dict[tuple[str, ...], str]:
    """Return the labels in the clients' folders, by client, file and row."""
    found: dict[tuple[str, ...], str] = {}
    for file in nodes.glob(f"*/{LABELS}"):
        with file.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                found[file.parent.name, row["file"], row["index"]] = row["label"]
    return found
