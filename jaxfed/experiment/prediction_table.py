"""Predictions on disk: predictions/METHOD-REPEAT.csv.gz of a workdir.

    table = pandas.read_csv("runs/x/predictions/xclp-0.csv.gz")

A row is a point that the method labels (one-shot methods: all points of all clients, also those whose label
was given) or is tested on (methods that train):

    client       who holds it; -1 where nobody does; of methods whose clients have models of their own, whose
                 model says so, a row for each of them
    index        its number in the data set: of the training split from 0 on, the test split behind it
    role         "labeled", "unlabeled" or "new" at its client; "test" where it was held out
    label        the predicted class, -1 for none; where the role is "labeled" the method's own view of it
    confidence   of the label, as the method means it: XCLP's 1 - entropy / log C; a model's probability
    truth        the true class; empty where it is not known

Classes are numbers; `class_names` in the workdir's partition.json has their names, in this order.
"""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np

from jaxfed.federation.algorithm import Predictions
from jaxfed.host import storage

COLUMNS = ("client", "index", "role", "label", "confidence", "truth")


def write_predictions(
    path: Path, predictions: Predictions, truth: np.ndarray, number: np.ndarray
) -> None:
    """Write one table, whole or not at all; the same predictions make the same bytes.

    Args:
        path: of the file; its folder is made.
        predictions: of n points.
        truth: int [N], the class of every example of the federation, -1 unknown.
        number: int [N], its number in the data set.
    """
    rows = zip(
        predictions.client.tolist(),
        number[predictions.example].tolist(),
        predictions.role.tolist(),
        predictions.label.tolist(),
        (f"{value:.6g}" for value in predictions.confidence.tolist()),
        ("" if label < 0 else label for label in truth[predictions.example].tolist()),
        strict=True,
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.whole_file(path, "wb") as stream:
        stream.write(gzip.compress(text.getvalue().encode(), mtime=0))
