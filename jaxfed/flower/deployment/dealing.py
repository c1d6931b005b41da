"""A config's simulated clients as folders: what each client and the server of a deployment would hold.

    folders = deal(config, Path("work/nodes"), Path("work/server"))

A client's folder (`jaxfed.flower.client.client_data`) has the examples that the simulation gives to the
client, in its order, bit for bit: labeled, then unlabeled ones in train.npz, new points in test.npz.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.data.simulation import Simulation
from jaxfed.data.dataset import UNLABELED
from jaxfed.data.encoding import RowEncoding
from jaxfed.errors import UsageError
from jaxfed.experiment.run.loop import first_repeat
from jaxfed.experiment.store.workdir import plain
from jaxfed.federation.clients import Federation
from jaxfed.flower.client.client_data import (
    PRIVATE_FOLDER,
    PUBLIC,
    SETTINGS,
    TEST,
    TRAIN,
    ClientSettings,
    private_folder,
    write_private,
)
from jaxfed.flower.server.server_data import HELD_OUT, SHARED


def deal(config: ConfigDict, nodes: Path, server: Path) -> tuple[Path, ...]:
    """Write the folders of all clients of a config, and that of the server; return the clients'."""
    if config.federation.labels_at != "clients":
        raise UsageError(
            "clients of a deployment hold their labels",
            key="config.federation.labels_at",
            value=config.federation.labels_at,
            allowed="use 'clients'",
        )
    simulation = Simulation(config)
    simulation.warn()
    first_repeat(config, simulation)
    federation = simulation.federation(config.seed)
    encoding = None  # of rows, unless a network computes their features
    if config.preprocessing.kind not in ("pretrained", "federated_features"):
        encoding = simulation.row_encoding(config.seed)
    columns = encoding.names if encoding is not None else ()
    named = config.learner.get("estimator", {}).get("estimator", "")  # a client must allow it
    estimators = (named,) if named else ()
    folders = deal_to_clients(federation, nodes, estimators=estimators, columns=columns)
    names = simulation.class_counts(federation)["class_names"][: federation.num_classes]
    deal_to_server(
        federation, server, class_names=names, numbers=simulation.numbers, encoding=encoding
    )
    return folders


def deal_to_clients(
    federation: Federation,
    nodes: Path,
    *,
    estimators: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> tuple[Path, ...]:
    """Write each client's folder, whose settings allow these estimators; its state, if any, stays."""
    nodes.mkdir(parents=True, exist_ok=True)
    return tuple(
        _deal_to(federation, client, nodes / str(client), estimators, columns)
        for client in range(federation.num_clients)
    )


def deal_to_server(
    federation: Federation,
    folder: Path,
    *,
    class_names: tuple[str, ...],
    numbers: np.ndarray,
    encoding: RowEncoding | None,
) -> None:
    """Write what a server knows: shared.json, and its own examples.

    shared.json has the number and the names of the classes, shape and type of an example, and the names of
    its columns and the encoding of rows if there are some. test.npz, validation.npz and server.npz have x, y
    and the number of each example in the data set; public.npz has x, and y if the labels are public.
    """
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    shared = {
        "num_classes": federation.num_classes,
        "class_names": list(class_names),
        "example": [str(federation.x.dtype), *federation.x.shape[1:]],
    }
    if encoding is not None:
        shared |= {"columns": list(encoding.names), "encoding": plain(encoding.described())}
    write_private(folder / SHARED, (json.dumps(shared, indent=2) + "\n").encode())
    for name in HELD_OUT:
        points = getattr(federation, name)
        arrays = {"x": federation.x[points], "y": federation.y[points], "number": numbers[points]}
        _write_arrays(folder / f"{name}.npz", arrays if len(points) else {})
    public = {"x": federation.public_examples} if len(federation.public) else {}
    if federation.public_labels is not None:
        public["y"] = federation.public_labels
    _write_arrays(folder / PUBLIC, public)


def _deal_to(
    federation: Federation,
    client: int,
    folder: Path,
    estimators: Sequence[str],
    columns: Sequence[str],
) -> Path:
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    labeled, unlabeled, new = (each[client] for each in federation.partition)
    own = np.concatenate([labeled, unlabeled])
    y = np.full(len(own), UNLABELED, np.int32)
    y[: len(labeled)] = federation.y[labeled]
    named = {"columns": np.array(columns)} if columns else {}
    _write_arrays(folder / TRAIN, {"x": federation.x[own], "y": y, **named})
    test = {"x": federation.x[new], "y": federation.y[new]} if len(new) else {}
    _write_arrays(folder / TEST, test)
    public = {"x": federation.public_examples} if len(federation.public) else {}
    _write_arrays(folder / PUBLIC, public)
    least = min(3, max(1, federation.num_clients - 1))  # one of a round may be lost
    lines = [f"number = {client}", f'name = "client-{client}"', f"least_clients = {least}"]
    if len(own) < ClientSettings.least_examples:  # simulated clients have no secrets
        lines.append(f"least_examples = {len(own)}")
    if estimators:
        lines.append(f"estimators = {json.dumps(estimators)}")
    write_private(folder / SETTINGS, "".join(f"{line}\n" for line in lines).encode())
    private_folder(folder)
    return folder


def _write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file, or remove an earlier one if there are no arrays."""
    if not arrays:
        file.unlink(missing_ok=True)
        return
    content = io.BytesIO()
    np.savez(content, **dict(arrays))  # type: ignore[arg-type]
    write_private(file, content.getvalue())
