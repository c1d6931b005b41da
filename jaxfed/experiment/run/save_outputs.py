"""Output files of a method at the end of a repeat: its states and its predictions (`store.workdir`).

All are complete before the checkpoint of that round begins.

A table of predictions, `pandas.read_csv("runs/x/predictions/xclp-0.csv.gz")`, has one row for each point.
One-shot methods have a row for every point of every client, including points whose label was given. Methods
that train have a row for every test point.

    client       the client that holds the point, -1 for none; for methods with per-client models the client
                 whose model predicts, with a row for each client
    index        index in the data set: training split from 0 on, then the test split
    role         "labeled", "unlabeled" or "new" at its client; "test" if it was held out
    label        the predicted class, -1 for none; for "labeled" points the method's own prediction
    confidence   of the label, as the method defines it: XCLP's 1 - entropy / log C; a model's probability
    truth        the true class; empty if it is unknown

Classes are indices into `class_names` of partition.json, clients into `client_names`.
"""

from __future__ import annotations

import csv
import gzip
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.experiment.run.simulate import Selected
from jaxfed.experiment.store.records import PREDICTED
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.federation.algorithm import FederatedAlgorithm, Predictions, attribute_of
from jaxfed.federation.clients import Federation
from jaxfed.host import storage
from jaxfed.host.checkpoint import Checkpoints


def save_outputs(
    workdir: Workdir,
    name: str,
    repeat: int,
    config: ConfigDict,
    selected: Selected,
    algorithm: FederatedAlgorithm,
    federation: Federation,
    simulation: Any,
) -> None:
    """Save a method's selected and last state, and its predictions.

    The states are for later experiments (`training.initial_model`), which notice other names of classes and
    features.
    """
    kept = [(selected.is_selecting, config.rounds, selected.state)]
    if selected.is_selecting:
        kept.insert(0, (False, selected.round, selected.best))
    for is_last, round_number, state in kept:
        folder = workdir.final_state(name, repeat, last=is_last)
        if folder.exists():  # left by a process that was killed before it saved this round
            shutil.rmtree(folder)
        record = {"round": round_number, "network": config.model.name}
        record["names"] = dict(simulation.names)
        Checkpoints(folder).save(round_number, state, record)
    if (predictions := attribute_of(algorithm.evaluate, "predictions")) is not None:
        rows = predictions(selected.final, federation)
        save_predictions(workdir.predictions(name, repeat), rows, federation.y, simulation.numbers)


def save_predictions(
    path: Path, predictions: Predictions, truth: np.ndarray, number: np.ndarray
) -> None:
    """Write one table atomically; `truth` and `number` are of every example of the federation."""
    of = predictions
    columns = of.client, number[of.example], of.role, of.label, of.confidence, truth[of.example]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PREDICTED)
    for *known, confidence, label in zip(*(each.tolist() for each in columns), strict=True):
        writer.writerow([*known, f"{confidence:.6g}", "" if label < 0 else label])
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.whole_file(path, "wb") as stream:
        stream.write(gzip.compress(text.getvalue().encode(), mtime=0))
