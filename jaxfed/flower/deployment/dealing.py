"""A config's simulated clients as folders: what each client and the server of a deployment would hold.

    folders = deal(config, Path("work/nodes"), Path("work/server"))

A client's folder (`jaxfed.flower.client.client_data`) has the examples that the simulation gives to the
client, in its order, bit for bit: labeled, then unlabeled ones in train.npz, new points in test.npz. The
server's folder is that of `jaxfed.flower.server.server_data`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.data.simulation import Simulation
from jaxfed.config.keys import refused
from jaxfed.data.dataset import UNLABELED
from jaxfed.experiment.run.loop import first_repeat
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
from jaxfed.flower.server.server_data import PARTS, SHARED


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
    server.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    write_private(server / SHARED, (json.dumps(shared, indent=2) + "\n").encode())
    for name in PARTS[:-1]:
        rows = getattr(federation, name)
        held = {"x": federation.x[rows], "y": federation.y[rows]} if len(rows) else {}
        _write_arrays(server / f"{name}.npz", held)
    _write_arrays(server / PUBLIC, _public(federation))
    named = config.learner.get("estimator", {}).get("estimator", "")  # a client must allow it
    folders = tuple(nodes / str(client) for client in range(federation.num_clients))
    for client, folder in enumerate(folders):
        estimators = [named] if named else []
        deal_to_client(federation, client, folder, estimators, shared.get("columns", ()))
    return folders


def deal_to_client(
    federation: Federation,
    client: int,
    folder: Path,
    estimators: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> None:
    """Write a client's folder, whose settings allow these estimators."""
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    labeled, unlabeled, new = (each[client] for each in federation.partition)
    own = np.concatenate([labeled, unlabeled])
    y = np.full(len(own), UNLABELED, np.int32)
    y[: len(labeled)] = federation.y[labeled]
    named = {"columns": np.array(columns)} if columns else {}
    _write_arrays(folder / TRAIN, {"x": federation.x[own], "y": y, **named})
    test = {"x": federation.x[new], "y": federation.y[new], **named}
    _write_arrays(folder / TEST, test if len(new) else {})
    _write_arrays(folder / PUBLIC, _public(federation))
    least = min(3, max(1, federation.num_clients - 1))  # one of a round may be lost
    lines = [f"number = {client}", f'name = "client-{client}"', f"least_clients = {least}"]
    if len(own) < ClientSettings.least_examples:  # simulated clients have no secrets
        lines.append(f"least_examples = {len(own)}")
    lines.append(f"estimators = {json.dumps(list(estimators))}")
    write_private(folder / SETTINGS, "".join(f"{line}\n" for line in lines).encode())
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
