"""A client's folder: what is wrong in it, one line each, and folders dealt from a simulation, bit for bit."""

import json
import stat

import numpy as np
import pytest
from small_simulations import simulation

from jaxfed.config import file
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.flower.client import client_data
from jaxfed.flower.deployment import trial

DIGITS = "ml_collections_configs/xclp_digits.py"
TOML = 'number = 1\nname = "north"\n'


def federation_of(data, num_classes):
    """A federation of this client alone."""
    new = None if data.test is None else [data.test]
    return Federation.from_clients(
        [data.train], new=new, public=data.public, num_classes=num_classes
    )


def made(folder, toml=TOML, **files):
    """A client's folder; a file is a dictionary of arrays, or bytes."""
    folder.mkdir(exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    (folder / "client.toml").write_text(toml)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for name, content in {"train": {"x": x, "y": np.array([0, 1, -1, -1])}, **files}.items():
        if isinstance(content, bytes):
            (folder / f"{name}.npz").write_bytes(content)
        elif content is not None:
            np.savez(folder / f"{name}.npz", **content)
    return folder


X = np.ones((2, 3), np.float32)
Y = np.zeros(2, int)


def test_a_folder_that_is_right(tmp_path):
    folder = made(tmp_path / "c", test={"x": X, "y": Y}, public={"x": X})
    data = client_data.read(folder)
    assert data.settings == client_data.ClientSettings(number=1, name="north")
    assert (data.train.x.dtype, data.train.y.dtype) == (np.float32, np.int32)
    federation = federation_of(data, 2)
    assert (federation.num_clients, len(federation.public)) == (1, 2)
    assert [len(part[0]) for part in federation.partition] == [2, 2, 2]


PAIR = {"x": X, "y": Y}
WRONG = {  # what is wrong -> files of the folder
    "train.npz: No such file": {"train": None},
    "train.npz: BadZipFile": {"train": b"not a zip"},
    "no array x; its arrays are y": {"train": {"y": Y}},
    "labels of shape (3,), int64, for 2 examples": {"train": {"x": X, "y": np.zeros(3, int)}},
    "examples of type <U1": {"train": {"x": np.array([["a"], ["b"]]), "y": Y}},
    "nan or infinite in float32": {"train": {"x": np.full((2, 3), 1e300), "y": Y}},
    "label 3 is not a class; use 0 to 2": {"train": {"x": X, "y": Y + 3}},
    "has no examples": {"train": {"x": X[:0], "y": Y[:0]}},
    "columns needs another name for each": {"train": {**PAIR, "columns": ["a", "b", "a"]}},
    "test.npz: columns differ from those of train.npz": {
        "test": {**PAIR, "columns": ["a", "b", "c"]}
    },
    "test.npz: examples are float32[2], all others float32[3]": {"test": {"x": X[:, :2], "y": Y}},
    "public.npz: no array x": {"public": {"y": Y}},
}
TOMLS = {
    "numbr: unknown key, did you mean 'number'": TOML + "numbr = 1",
    "number is missing; use integers from 0 on": 'name = "a"',
    "number=True": 'number = true\nname = "a"',
    "a text of one line": 'number = 0\nname = " "',
    "least_clients=0": TOML + "least_clients = 0",
    "not a readable TOML file": "number = ",
}


@pytest.mark.parametrize("wrong", [*WRONG, *TOMLS])
def test_a_folder_that_is_wrong(tmp_path, wrong):
    place = tmp_path / "c"
    made(place, TOMLS.get(wrong, TOML), **WRONG.get(wrong, {}))
    with pytest.raises(UsageError) as caught:
        client_data.read(place, num_classes=3)
    assert wrong in str(caught.value)
    assert str(place) in str(caught.value)


def test_what_others_can_read(tmp_path):
    folder = made(tmp_path / "c")
    (folder / "train.npz").chmod(0o644)
    client_data.read(folder)  # nobody else enters the folder
    folder.chmod(0o755)
    with pytest.raises(UsageError, match="every user of this machine can read it; chmod o="):
        client_data.read(folder)
    folder.chmod(0o700)
    state = client_data.private_folder(folder)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    state.chmod(0o750)
    with pytest.raises(UsageError, match="mode 0750"):
        client_data.read(folder)
    client_data.private_folder(folder)
    client_data.read(folder)


def test_folders_are_what_the_simulation_gives_its_clients(tmp_path):
    keys = {"federation.labeled_fraction": 0.3, "federation.public_size": 20}
    whole = simulation(tmp_path, 30, **keys).federation(0)
    for client in range(whole.num_clients):
        folder = tmp_path / f"{client}"
        trial.deal_to_client(whole, client, folder)
        data = client_data.read(folder, num_classes=3)
        assert (data.settings.number, data.settings.least_clients) == (client, 3)
        own = federation_of(data, 3)
        ours, theirs = own.cohort(), whole.cohort([client], ragged=False)
        size = len(whole.points(client))
        np.testing.assert_array_equal(ours.x[0, :size], theirs.x[0, :size], strict=True)
        np.testing.assert_array_equal(ours.y[0, :size], theirs.y[0, :size])
        new = whole.y[whole.partition.new[client]]
        np.testing.assert_array_equal(own.y[own.partition.new[0]], new)
        np.testing.assert_array_equal(own.public_examples, whole.public_examples)


def test_a_config_is_dealt_and_dealt_again(tmp_path):
    config = file.load(DIGITS, ["federation.num_clients=3", "dataset.train_size=120"])
    dealt = trial.deal(config, tmp_path / "nodes", tmp_path / "server")
    assert [folder.name for folder in dealt] == ["0", "1", "2"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.npz")}
    (dealt[0] / "state" / "kept").write_text("1")
    trial.deal(config, tmp_path / "nodes", tmp_path / "server")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.npz")} == before
    assert (dealt[0] / "state" / "kept").exists()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "kept"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    shared = json.loads((tmp_path / "server" / "shared.json").read_text())
    whole = Simulation(config).federation(config.seed)
    assert len(shared["class_names"]) == whole.num_classes == 10
