"""A network run beside its simulation: states and labels that differ."""

from __future__ import annotations

import csv
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfed.experiment.store.records import read_predictions
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.flower.client.client_data import LABELS
from jaxfed.host.safe_files import arrays_of

_LEAVES = "state/"
_MODELS = "state/learner."  # of clients, if each has its own


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


def compare(first: Path, second: Path, method: str, *, nodes: Path | None = None) -> Difference:
    """Compare the last states and the predictions of a method in two workdirs.

    The first one is that of a server, whose state has no rows for its clients' own states, and none of their
    models if each has its own. Labels that stay with the clients are in their folders, `nodes`/NUMBER, if
    these are here. A client's points have one order everywhere: labeled, unlabeled, new.
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
        largest = max(_difference(here.get(n), there.get(n)) for n in {*here, *there})
    found, expected = (_labels(path, method) for path in (first, second))
    if nodes is not None and not found:  # a server has no labels of its clients' points
        found = _labels_at_clients(nodes)
        expected.pop("-1", None)
    pairs = [
        pair
        for client in {*found, *expected}
        for pair in zip_longest(found.get(client, ()), expected.get(client, ()))
    ]
    labels = sum(one != other for one, other in pairs) if found and expected else None
    return Difference(largest, len(here), labels, len(pairs))


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
    return float(np.nan_to_num(gaps, nan=np.inf).max(initial=0.0))


def _labels(workdir: Path, method: str) -> dict[str, list[str]]:
    """Return the labels of each client's points; "-1" has those that no client holds."""
    found = defaultdict(list)
    for row in read_predictions(workdir, method, 0) or ():
        found[row["client"]].append(row["label"])
    return found


def _labels_at_clients(nodes: Path) -> dict[str, list[str]]:
    found = defaultdict(list)
    for file in nodes.glob(f"*/{LABELS}"):
        with file.open(encoding="utf-8", newline="") as stream:
            found[file.parent.name] = [row["label"] for row in csv.DictReader(stream)]
    return found
