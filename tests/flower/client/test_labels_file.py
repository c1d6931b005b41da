"""labels.csv of a client: rows of its own files, whatever the order in which a method sees them."""

import stat

import numpy as np

from jaxfed.flower.client import labels_file
from jaxfed.flower.client.client_data import ClientData, ClientSettings, Points

X = np.zeros((4, 2), np.float32)


def test_labels_go_back_to_the_rows_of_the_folder(tmp_path):
    y = np.array([-1, 2, -1, 0], np.int32)
    data = ClientData(
        tmp_path, ClientSettings(number=0, name="a"), Points(X, y), Points(X[:1], y[3:]), None
    )
    # Labeled rows 1 and 3 are first, the new point is last, as in a simulation.
    label = np.array([2, 0, 1, -1, 1], np.int32)
    confidence = np.array([1, 0.5, 0.25, 0, 0.125], np.float32)
    file = tmp_path / "labels.csv"
    file.write_text("of an earlier run")
    labels_file.write(data, label, confidence)
    assert file.read_bytes() == (
        b"file,index,label,confidence,given\r\ntrain.npz,0,1,0.25,\r\ntrain.npz,1,2,1,2\r\n"
        b"train.npz,2,-1,0,\r\ntrain.npz,3,0,0.5,0\r\ntest.npz,0,1,0.125,\r\n"
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["labels.csv"]
