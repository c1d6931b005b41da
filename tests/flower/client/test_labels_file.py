"""labels.csv of a client: rows of its own train.npz, whatever the order in which a method sees them."""

import stat

import numpy as np

from jaxfed.flower.client import labels_file
from jaxfed.flower.client.client_data import ClientData, ClientSettings, Points

X = np.zeros((4, 2), np.float32)


def test_labels_go_back_to_the_rows_of_the_folder(tmp_path):
    y = np.array([-1, 2, -1, 0], np.int32)
    data = ClientData(tmp_path, ClientSettings(number=0, name="a"), Points(X, y), None, None)
    # Labeled rows 1 and 3 are first, as in a simulation.
    label = np.array([2, 0, 1, -1], np.int32)
    confidence = np.array([1, 0.5, 0.25, 0], np.float32)
    file = tmp_path / "labels.csv"
    file.write_text("of an earlier run")
    labels_file.write(data, label, confidence)
    assert file.read_bytes() == (
        b"index,label,confidence,given\r\n0,1,0.25,\r\n1,2,1,2\r\n2,-1,0,\r\n3,0,0.5,0\r\n"
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["labels.csv"]
