"""Whole runs through the same code as Flower's processes, in this process: equal to the simulation."""

import csv
import gzip
import json
from functools import partial

import numpy as np
import pytest
from local_network import LocalNetwork

from jaxfed.api.run import run as simulate
from jaxfed.config import file as config_file
from jaxfed.errors import UsageError
from jaxfed.flower.client import client_run
from jaxfed.flower.deployment import comparison, dealing
from jaxfed.flower.messages import records
from jaxfed.flower.server import server_data, server_run

pytestmark = pytest.mark.usefixtures("as_users_compile")

SMALL = (
    *("dataset.train_size=200", "federation.num_clients=3", "rounds=3", "num_repeats=1"),
    *("cohort_size=0", "baselines=()", "execution.plots=false", "evaluate_every=0"),
)


def config_of(name, *more):
    return config_file.load(
        "examples/flower/fedavg_digits.py", (*SMALL, f"algorithm={name}", *more)
    )


class Deployment:
    """Folders of a config's clients and server, and a network of functions that answer from them."""

    def __init__(self, folder, config, faults=None):
        self.config, self.place = config, folder / "run"
        dealt = dealing.deal(config, folder / "nodes", folder / "server")
        self.held = server_data.read(folder / "server")
        self.folders = dealt.clients
        self.network = LocalNetwork(
            {
                10 + j: partial(client_run.perform, folder=each)
                for j, each in enumerate(dealt.clients)
            },
            faults,
        )

    def serve(self):
        clock = self.network.clock
        return server_run.serve(
            self.network, self.config, self.place, self.held, clock=clock, sleep=clock.sleep
        )

    def lines(self):
        return [json.loads(line) for line in (self.place / "stages.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_run_is_the_simulation(tmp_path, name):
    config = config_of(name)
    there = Deployment(tmp_path, config)
    there.serve()
    simulate(config, workdir=tmp_path / "simulation", progress=False)
    found = comparison.compare(there.place, tmp_path / "simulation", name)
    print(found)
    assert found.largest == 0
    assert found.labels == 0


SECURE = (
    *("xclp.hamming=masked", "xclp.influence=columns", "xclp.num_bits=64"),
    *("xclp.row_sums=masked", "preprocessing.kind=identity"),
)


def labels_of(folder):
    """The labels that a client has stored, and no secret beside them."""
    [last] = folder.glob("state/*/last")
    number = records.from_bytes(last.read_bytes())["number"]
    state = records.from_bytes((last.parent / f"{number}.state").read_bytes())
    assert state["once"] is False
    assert state["seed"] == state["past"] == b""
    assert len(list(last.parent.glob("*.state"))) == 1  # earlier ones served once
    return np.frombuffer(state["label"], np.int32)


@pytest.mark.parametrize("row_sums", ["masked", "masked_resilient"])
def test_labels_at_clients_are_the_simulations(tmp_path, row_sums):
    config = config_of("xclp", *SECURE, f"xclp.row_sums={row_sums}")
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


def test_what_cannot_run_says_so_before_anybody_is_asked(tmp_path):
    there = Deployment(tmp_path, config_of("xclp"))
    with pytest.raises(UsageError, match=r"hamming=.*does not run on a network; use 'masked'"):
        there.serve()
    assert not there.network.received
