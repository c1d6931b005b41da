"""Runs on clients whose examples stay on disk: the numbers of memory, in the memory of a cohort."""

import json

import numpy as np
import pytest

import jaxfed
from jaxfed.config import file
from jaxfed.config.data.simulation import Simulation
from jaxfed.data import pack
from jaxfed.data.mapped_rows import is_mapped
from jaxfed.errors import UsageError

NATURAL = {
    "federation__partition": "natural",
    "federation__num_clients": 0,
    "federation__labeled_fraction": 0.5,
    "federation__test": "central",
    "preprocessing__kind": "images",
    "model__name": "mlp",
    "cohort_size": 4,
    "num_repeats": 1,
    "execution__plots": False,
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The same images of 12 clients as arrays in memory and on disk."""
    place = tmp_path_factory.mktemp("sets")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 160)
    x = (60 * y[:, None, None, None] + rng.integers(0, 60, (160, 8, 8, 1))).astype(np.uint8)
    client_id = np.repeat(np.arange(12), 10)
    np.savez(
        place / "a.npz", x=x[:120], y=y[:120], x_test=x[120:], y_test=y[120:], client_id=client_id
    )
    clients = ((x[:120][client_id == k], y[:120][client_id == k]) for k in range(12))
    pack(clients, place / "packed", test=(x[120:], y[120:]))
    return place / "a.npz", place / "packed"


def same_runs(sets, tmp_path, **settings):
    for name, place in zip(("memory", "disk"), sets, strict=True):
        jaxfed.run(
            "fedavg_xclp:smoke",
            workdir=tmp_path / name,
            progress=False,
            dataset__name=str(place),
            **NATURAL | settings,
        )
    for name in ("partition.json", "data.json"):
        memory, disk = (
            json.loads((tmp_path / place / name).read_text()) for place in ("memory", "disk")
        )
        memory.pop("client_names", None)  # which a folder has not
        assert memory == disk
    memory, disk = (
        [
            {**json.loads(line), "seconds": 0}
            for line in (tmp_path / place / "metrics.jsonl").read_text().splitlines()
        ]
        for place in ("memory", "disk")
    )
    assert memory == disk
    results = [
        json.loads((tmp_path / place / "summary.json").read_text())["algorithms"]
        for place in ("memory", "disk")
    ]
    for methods in results:
        for metrics in methods.values():
            del metrics["seconds"]
    assert results[0] == results[1]


def test_a_run_has_the_same_bits(sets, tmp_path):
    same_runs(sets, tmp_path, algorithm="fedavg", baselines=(), rounds=1)


def settings_of(place, *more):
    given = [f"{key.replace('__', '.')}={value}" for key, value in NATURAL.items()]
    return file.load("fedavg_xclp:smoke", [*given, f"dataset.name={place}", *more])


def test_examples_stay_on_disk(sets):
    assert is_mapped(Simulation(settings_of(sets[1])).federation(0).x)


def test_vectors_stay_on_disk_and_bytes_become_numbers(tmp_path):
    y = np.arange(30) % 3
    for name, x in (("float", np.eye(30, dtype=np.float32)), ("bytes", np.eye(30, dtype=np.uint8))):
        place = pack([(x[:15], y[:15]), (x[15:], y[15:])], tmp_path / name, test=(x, y))
        settings = settings_of(place, "preprocessing.kind=identity", "cohort_size=0")
        simulation = Simulation(settings)
        federation = simulation.federation(0)
        assert is_mapped(federation.x) == (name == "float")
        assert federation.x.dtype == np.float32
        np.testing.assert_array_equal(np.asarray(federation.x)[:30], np.eye(30))


def test_copies_beyond_memory_are_refused(sets, monkeypatch):
    monkeypatch.setattr("jaxfed.federation.execution.available_bytes", lambda: 29_000)
    own = ("baselines=()", "algorithm=fedavg")
    settings = settings_of(sets[1], "preprocessing.kind=identity", *own)
    with pytest.raises(UsageError, match=r"kind='identity': a float32 copy would take 41 kB"):
        Simulation(settings).federation(0)
    Simulation(settings_of(sets[1], *own)).federation(0)
