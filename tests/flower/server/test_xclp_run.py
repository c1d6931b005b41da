"""One-shot XCLP by clients that answer letters: labels stay at clients and are the simulation's."""

import csv
import gzip
import stat

import numpy as np
import pytest
from network_deployment import Deployment, config_of, state_of

from jaxfed.api.run import run as simulate
from jaxfed.errors import UsageError
from jaxfed.flower.client import client_data
from jaxfed.flower.deployment import comparison

SECURE = (
    *("xclp.hamming=masked", "xclp.influence=columns", "xclp.num_bits=64"),
    *("xclp.row_sums=masked", "preprocessing.kind=identity"),
)


def labels_of(folder):
    """The labels that a client has stored, and no secret beside them."""
    state = state_of(folder)
    assert state["once"] is False
    assert state["seed"] == state["past"] == b""
    assert len(list(folder.glob("state/*/*.state"))) == 1  # earlier ones served once
    return np.frombuffer(state["label"], np.int32)


@pytest.mark.sample(1)
@pytest.mark.parametrize("row_sums", ["masked", "masked_resilient"])
def test_labels_at_clients_are_the_simulations(tmp_path, row_sums):
    """Those of new points in test.npz, too, which are in the graph."""
    more = f"xclp.row_sums={row_sums}", "federation.test=clients"
    config = config_of("xclp", *SECURE, *more)
    there = Deployment(tmp_path, config)
    there.serve()
    simulate(config, workdir=tmp_path / "simulation", progress=False)
    [file] = (tmp_path / "simulation").rglob("*.csv.gz")
    with gzip.open(file, "rt", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for client, folder in enumerate(there.folders):
        expected = [int(row["label"]) for row in rows if int(row["client"]) == client]
        assert labels_of(folder).tolist() == expected
        assert len(expected)
        assert_in_a_file(folder, [row for row in rows if int(row["client"]) == client])
    places, nodes = (there.place, tmp_path / "simulation"), there.folders[0].parent
    found = comparison.compare(*places, "xclp", nodes=nodes)
    assert (found.labels, found.num_labels) == (0, len(rows))
    file = there.folders[1] / "labels.csv"
    text = file.read_text()
    file.write_text(text.replace("npz,0,", "npz,0,7", 1))
    assert comparison.compare(*places, "xclp", nodes=nodes).labels == 1
    assert comparison.compare(*places, "xclp").labels is None


def assert_in_a_file(folder, expected):
    """The client's labels.csv has the simulation's labels, by the rows of its own two files."""
    file = folder / "labels.csv"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with file.open(encoding="utf-8", newline="") as stream:
        found = list(csv.DictReader(stream))
    data = client_data.read(folder)
    y, num_new = data.points.y, len(data.test.y)
    assert num_new > 0
    assert [row["file"] for row in found] == ["train.npz"] * len(data.train.y) + [
        "test.npz"
    ] * num_new
    places = [*range(len(data.train.y)), *range(num_new)]
    assert [int(row["index"]) for row in found] == places
    assert [row["given"] for row in found] == ["" if label < 0 else str(label) for label in y]
    order = [*np.flatnonzero(y >= 0), *np.flatnonzero(y < 0)]  # the simulation's
    assert [found[row]["label"] for row in order] == [row["label"] for row in expected]
    np.testing.assert_allclose(
        [float(found[row]["confidence"]) for row in order],
        [float(row["confidence"]) for row in expected],
        atol=1e-5,
    )


def test_what_cannot_run_says_so_before_anybody_is_asked(tmp_path):
    there = Deployment(tmp_path, config_of("xclp"))
    every = (
        r"hamming=.*does not run on a network; use 'masked'; .*row_sums=.*; .*influence='labels'"
    )
    with pytest.raises(UsageError, match=every):
        there.serve()
    assert not there.network.received
