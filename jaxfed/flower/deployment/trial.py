"""A trial: a config's simulated clients as folders, and the results of a network beside a simulation's.

A client's folder (`jaxfed.flower.client.client_data`) has the examples that the simulation gives to the
client, in its order, bit for bit: labeled, then unlabeled ones in train.npz, new points in test.npz. The
server's folder is that of `jaxfed.flower.server.server_data`.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.data.simulation import Simulation
from jaxfed.config.keys import refused
from jaxfed.data.dataset import UNLABELED
from jaxfed.experiment.run.loop import first_repeat
from jaxfed.experiment.store.records import read_predictions
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.federation.clients import Federation
from jaxfed.flower.client import client_data
from jaxfed.flower.client.client_data import ClientSettings, private_folder, write_private
from jaxfed.flower.server.server_data import PARTS, SHARED
from jaxfed.host.safe_files import arrays_of

_LEAVES = "state/"
_MODELS = "state/learner."  # of clients, if each has its own


def deal(config: ConfigDict, nodes: Path, server: Path) -> tuple[Path, ...]:
    """Write the folders of all clients of a config, and that of the server; return the clients'.

    A client's state, if any, stays.
    """
    if config.federation.labels_at != "clients":
        wrong = "clients of a deployment hold their labels"
        raise refused(config, "federation.labels_at", wrong, "use 'clients'")
    simulation = Simulation(config)
    simulation.warn()
    first_repeat(config, simulation)
    federation = simulation.federation(config.seed)
    names = simulation.class_counts(federation)["class_names"][: federation.num_classes]
    shared: dict[str, Any] = {
        "class_names": list(names),
        "example": [str(federation.x.dtype), *federation.x.shape[1:]],
    }
    # Columns have no names if a network computes them.
    if config.preprocessing.kind not in ("pretrained", "federated_features"):
        shared["columns"] = list(simulation.row_encoding(config.seed).names)
    nodes.mkdir(parents=True, exist_ok=True)
    server.mkdir(mode=client_data.PRIVATE_FOLDER, parents=True, exist_ok=True)
    write_private(server / SHARED, (json.dumps(shared, indent=2) + "\n").encode())
    for name in PARTS[:-1]:
        rows = getattr(federation, name)
        held = {"x": federation.x[rows], "y": federation.y[rows]} if len(rows) else {}
        _write_arrays(server / f"{name}.npz", held)
    _write_arrays(server / client_data.PUBLIC, _public(federation))
    named = config.learner.get("estimator", {}).get("estimator", "")  # a client must allow it
    folders = tuple(nodes / str(client) for client in range(federation.num_clients))
    columns = shared.get("columns", ())
    for client, folder in enumerate(folders):
        deal_to_client(federation, client, folder, [named] * bool(named), columns)
    return folders


def deal_to_client(
    federation: Federation,
    client: int,
    folder: Path,
    estimators: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> None:
    """Write a client's folder, whose settings allow these estimators."""
    folder.mkdir(mode=client_data.PRIVATE_FOLDER, exist_ok=True)
    labeled, unlabeled, new = (each[client] for each in federation.partition)
    rows = np.concatenate([labeled, unlabeled])
    y = np.full(len(rows), UNLABELED, np.int32)
    y[: len(labeled)] = federation.y[labeled]
    named = {"columns": np.array(columns)} if columns else {}
    _write_arrays(folder / client_data.TRAIN, {"x": federation.x[rows], "y": y, **named})
    test = {"x": federation.x[new], "y": federation.y[new], **named}
    _write_arrays(folder / client_data.TEST, test if len(new) else {})
    _write_arrays(folder / client_data.PUBLIC, _public(federation))
    least = min(3, max(1, federation.num_clients - 1))  # one of a round may be lost
    lines = [f"number = {client}", f'name = "client-{client}"', f"least_clients = {least}"]
    if len(rows) < ClientSettings.least_examples:  # simulated clients have no secrets
        lines.append(f"least_examples = {len(rows)}")
    lines.append(f"estimators = {json.dumps(list(estimators))}")
    write_private(folder / client_data.SETTINGS, "".join(f"{line}\n" for line in lines).encode())
    private_folder(folder)


def _public(federation: Federation) -> dict[str, np.ndarray]:
    return {"x": federation.public_examples} if len(federation.public) else {}


def _write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file, or remove an earlier one if there are no arrays."""
    if not arrays:
        file.unlink(missing_ok=True)
        return
    content = io.BytesIO()
    np.savez(content, **dict(arrays))  # type: ignore[arg-type]
    write_private(file, content.getvalue())


class Difference(NamedTuple):
    """Differences of the results of one method in one repeat.

    `largest` is that of an entry of the last state, infinite for other shapes or names, and None without
    states; `labels` is the number of points whose labels differ, and None without predictions.
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
        """True if something was compared, and no entry and no label differs."""
        return {self.largest, self.labels} in ({0}, {0, None})


def compare(first: Path, second: Path, method: str, *, nodes: Path | None = None) -> Difference:
    """Compare the last states and the predictions of a method in two workdirs.

    The first one is that of a server, whose state has no rows for its clients' own states, and none of their
    models if each has its own. Labels that stay with the clients are in their folders, `nodes`/NUMBER, if
    these are here. A client's points have one order everywhere: labeled, unlabeled, new.
    """
    state, other = (_last_state(path, method) for path in (first, second))
    largest = None
    # States of clients, which stay with them; a table has several arrays, NAME and NAME@...
    empty = {name for name, rows in state.items() if rows.shape[:1] == (0,)}
    state, other = (
        {name: rows for name, rows in side.items() if name.partition("@")[0] not in empty}
        for side in (state, other)
    )
    if not any(name.startswith(_MODELS) for name in state):
        other = {name: rows for name, rows in other.items() if not name.startswith(_MODELS)}
    if state and other:
        largest = max(_difference(state.get(n), other.get(n)) for n in {*state, *other})
    actual, expected = (_labels(path, method) for path in (first, second))
    if nodes is not None and not actual:  # a server has no labels of its clients' points
        actual = _labels_at_clients(nodes)
        expected.pop("-1", None)
    pairs = [
        pair
        for client in {*actual, *expected}
        for pair in zip_longest(actual.get(client, ()), expected.get(client, ()))
    ]
    labels = sum(one != other for one, other in pairs) if actual and expected else None
    return Difference(largest, len(state), labels, len(pairs))


def _last_state(workdir: Path, method: str) -> dict[str, np.ndarray]:
    """Return the arrays of a method's last state, or of its only one; {} if there is none."""
    files = Workdir(workdir)
    for is_last in (True, False):
        folder = files.final_state(method, 0, last=is_last)
        if saved := sorted(folder.glob("*.npz")):
            arrays = arrays_of(saved[-1])
            return {name: array for name, array in arrays.items() if name.startswith(_LEAVES)}
    return {}


def _difference(a: np.ndarray | None, b: np.ndarray | None) -> float:
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.tobytes() == b.tobytes():
        return 0.0
    if a.dtype.kind not in "biuf":
        return float("inf")
    gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(np.nan_to_num(gaps, nan=np.inf).max(initial=0.0))


def _labels(workdir: Path, method: str) -> dict[str, list[str]]:
    """Return the labels of each client's points; "-1" has those that no client holds."""
    labels_of = defaultdict(list)
    for row in read_predictions(workdir, method, 0) or ():
        labels_of[row["client"]].append(row["label"])
    return labels_of


def _labels_at_clients(nodes: Path) -> dict[str, list[str]]:
    labels_of = defaultdict(list)
    for file in nodes.glob(f"*/{client_data.LABELS}"):
        with file.open(encoding="utf-8", newline="") as stream:
            labels_of[file.parent.name] = [row["label"] for row in csv.DictReader(stream)]
    return labels_of
