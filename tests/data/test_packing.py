"""A federation in a folder is the one in memory; a folder that is not whole is refused in one line."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from damaged_files import ANY, says_or_reads
from invoking import ROOT

import jaxfed
from jaxfed.data import load, pack
from jaxfed.data.given_examples import GivenExamples
from jaxfed.data.mapped_rows import is_mapped
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.kernels.devices import rows_at_once

RNG = np.random.default_rng(0)


def pair(count, labeled=1.0, dtype=np.uint8):
    x = RNG.integers(0, 255, (count, 3, 2)).astype(dtype)
    y = RNG.integers(0, 4, count)
    return x, np.where(RNG.random(count) < labeled, y, -1)


CLIENTS = [pair(count, 0.5) for count in (5, 0, 9, 1, 4)]
OTHERS = {"test": pair(6), "validation": pair(3)}


def same(packed, other):
    """Each side numbers its rows by itself: what a method sees of them is equal."""
    assert is_mapped(packed.x)
    for field in fields(Federation):
        mine, theirs = getattr(packed, field.name), getattr(other, field.name)
        if field.name in ("validation", "test", "server", "public"):
            np.testing.assert_array_equal(packed.x[mine], other.x[theirs])
            np.testing.assert_array_equal(packed.y[mine], other.y[theirs])
        elif field.name not in ("x", "y", "partition"):
            np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(packed.cohort(), other.cohort(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for client in range(other.num_clients):
        np.testing.assert_array_equal(
            packed.y[packed.points(client)], other.y[other.points(client)]
        )
    np.testing.assert_array_equal(packed.partition.sizes, other.partition.sizes)
    np.testing.assert_array_equal(packed.normalization, other.normalization)


@pytest.mark.parametrize("others", [(), ("test",), tuple(OTHERS)])
def test_clients_are_those_of_memory(tmp_path, others):
    given = {name: OTHERS[name] for name in others}
    place = pack(iter(CLIENTS), tmp_path / "clients", **given)
    same(Federation.open_packed(place), Federation.from_clients(CLIENTS, **given))
    assert os.listdir(tmp_path) == ["clients"]


def test_clients_are_read_one_after_another(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxfed.data.packing._AT_ONCE", 60)
    read, written, joined = [], [], GivenExamples.joined

    def clients():
        for client in CLIENTS * 3:
            read.append(client)
            yield client

    def counted(self):
        written.append(len(read))
        return joined(self)

    monkeypatch.setattr(GivenExamples, "joined", counted)
    pack(clients(), tmp_path / "clients")
    assert written[0] < 5 < len(read) == 15
    assert len(set(written)) > 3


def test_a_config_reads_the_clients_examples(tmp_path):
    data = load(pack(CLIENTS, tmp_path / "clients", test=OTHERS["test"], num_classes=9))
    assert is_mapped(data.x)
    sizes = [len(y) for _, y in CLIENTS]
    np.testing.assert_array_equal(data.client_id, np.repeat(np.arange(5), sizes))
    np.testing.assert_array_equal(data.x_test, OTHERS["test"][0])
    assert (data.client_id_test, data.num_classes, data.class_names[8]) == (None, 9, "8")


def test_an_existing_folder_stays(tmp_path):
    place = pack(CLIENTS, tmp_path / "clients")
    with pytest.raises(UsageError, match="it exists; give a new folder"):
        pack(CLIENTS[:2], place)
    assert Federation.open_packed(place).num_clients == 5


@pytest.mark.parametrize("name", ["packed.json", "x.npy", "y.npy", "counts.npy"])
def test_any_damage_to_a_folder_is_one_line(tmp_path, name):
    place = pack(CLIENTS, tmp_path / "clients", test=OTHERS["test"])
    for seed, kind in enumerate(ANY):
        damaged = shutil.copytree(place, tmp_path / str(seed))
        ANY[kind](damaged / name, np.random.default_rng(seed))
        says_or_reads(lambda damaged=damaged: Federation.open_packed(damaged))


KILLED = """
import sys, time, numpy as np
from jaxfed.data import pack
def clients():
    for _ in range(3):
        yield np.zeros((2**12, 2**10), np.float32), np.arange(2**12) % 2
    print("writing", flush=True)
    time.sleep(60)
pack(clients(), sys.argv[1])
"""


def test_a_kill_leaves_no_folder_and_the_next_call_tidies_up(tmp_path):
    place = tmp_path / "clients"
    command = [sys.executable, "-c", KILLED, str(place)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == []
    (left,) = tmp_path.rglob("x.npy")
    assert left.stat().st_size > 2**24
    with pytest.raises(UsageError, match=r"no packed\.json"):
        Federation.open_packed(place)
    pack(CLIENTS, place)
    assert os.listdir(tmp_path) == ["clients"]


def network():
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.last = nnx.Linear(6, 4, rngs=rngs)

        def __call__(self, x):
            return self.last(x.reshape(len(x), -1))

    return jaxfed.from_flax(Net, (3, 2))


def test_fedavg_has_the_same_bits(tmp_path, monkeypatch):
    """And reads no more at a time than a cohort or a batch."""
    read, taken = os.preadv, []

    def counted(descriptor, buffers, place):
        taken.append(len(buffers[0]) // 6)
        return read(descriptor, buffers, place)

    monkeypatch.setattr(os, "preadv", counted)
    clients = [pair(6, 0.8) for _ in range(8)]
    others = {"test": pair(300), "validation": pair(9)}
    pack(clients, tmp_path / "clients", **others)
    results = []
    for federation in (
        Federation.from_clients(clients, **others),
        Federation.open_packed(tmp_path / "clients"),
    ):
        fedavg = jaxfed.algorithms.fedavg(training=jaxfed.Training(network()))
        result = jaxfed.simulate(fedavg, federation, rounds=3, cohort_size=4, evaluate_every=1)
        records = [dict(record, seconds=0) for record in result.records]
        results.append((records, result.metrics, result.predictions()))
    assert results[0][:2] == results[1][:2]
    np.testing.assert_array_equal(results[0][2].confidence, results[1][2].confidence)
    assert max(taken) == rows_at_once()
    assert sum(taken) >= 3 * 24 + 300
