"""File labels.csv in a client's folder: labels that a method has given to the client's own examples.

    file          train.npz or test.npz
    index         row of the file, from 0
    label         the method's, -1 if it gave none
    confidence    the method's, from 0 to 1
    given         label in train.npz, empty if there is none

The newest run that gives labels replaces the file. It stays at the client, and only its owner can read it.
"""

from __future__ import annotations

import csv
import io

import numpy as np

from jaxfed.flower.client.client_data import TEST, TRAIN, ClientData, labeled_first, write_private

LABELS = "labels.csv"
_COLUMNS = ("file", "index", "label", "confidence", "given")


def write(data: ClientData, label: np.ndarray, confidence: np.ndarray) -> None:
    """Write the labels int32 [n] and confidences float32 [n] of the client's examples, labeled ones first."""
    stream = io.StringIO(newline="")
    lines = csv.writer(stream)
    lines.writerow(_COLUMNS)
    known, num_training = data.points.y, len(data.train.y)
    for index, row in enumerate(np.argsort(labeled_first(known)).tolist()):
        file, place = (TRAIN, index) if index < num_training else (TEST, index - num_training)
        given = "" if known[index] < 0 else int(known[index])
        lines.writerow([file, place, int(label[row]), f"{confidence[row]:.6g}", given])
    write_private(data.folder / LABELS, stream.getvalue().encode())
