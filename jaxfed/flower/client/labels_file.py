"""File labels.csv in a client's folder: labels that a method has given to the client's own examples.

    index         row of train.npz, from 0
    label         the method's, -1 if it gave none
    confidence    the method's, from 0 to 1
    given         label in train.npz, empty if unlabeled

The newest run that gives labels replaces the file. It stays at the client, and only its owner can read it.
"""

from __future__ import annotations

import csv
import io

import numpy as np

from jaxfed.flower.client.client_data import ClientData, labeled_first, write_private

LABELS = "labels.csv"
_COLUMNS = ("index", "label", "confidence", "given")


def write(data: ClientData, label: np.ndarray, confidence: np.ndarray) -> None:
    """Write the labels int32 [n] and confidences float32 [n] of the client's examples, labeled ones first."""
    stream = io.StringIO(newline="")
    lines = csv.writer(stream)
    lines.writerow(_COLUMNS)
    order = labeled_first(data.train.y)
    for row in np.argsort(order).tolist():
        index = int(order[row])
        given = int(data.train.y[index])
        known = "" if given < 0 else given
        lines.writerow([index, int(label[row]), f"{confidence[row]:.6g}", known])
    write_private(data.folder / LABELS, stream.getvalue().encode())
