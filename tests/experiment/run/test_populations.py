"""An experiment of so many clients that their states are tables: resumed, selected, on a disk."""

import json

import numpy as np
import pytest
from rich.console import Console

from jaxfed.config import file as config_file
from jaxfed.config.check import check
from jaxfed.config.data.simulation import Simulation
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.host.interruption import Interruption
from jaxfed.host.row_table import RowTable
from jaxfed.training import server_state

CLIENTS, COHORT, ROUNDS, NUMBERS = 450, 5, 6, 650  # each client has a control of 650 numbers


class Stop(Exception):
    pass


def config_of(**changes):
    config = config_file.load(
        "ml_collections_configs/fedavg_xclp.py:smoke",
        [
            "dataset.name=digits",
            "preprocessing.kind=images",
            "federation.partition=iid",
            f"federation.num_clients={CLIENTS}",
            "federation.num_labeled=900",
            "model.name=mlp",
            "model.hidden=()",
            "training.labeled_only_rounds=0",
            "execution.plots=false",
        ],
    )
    config.algorithm, config.baselines, config.num_repeats = "scaffold", (), 1
    config.rounds, config.cohort_size = ROUNDS, COHORT
    config.checkpoint_every, config.evaluate_every = 1, 2
    config.update_from_flattened_dict(changes)
    check(config)
    return config


def play(config, path, stop_before=0):
    def observe(observed):
        if observed.played.round == stop_before:
            raise Stop
        for table in server_state.leaves(observed.played.after.clients):
            if isinstance(table, RowTable):  # of all older states the one before is held
                assert len(table._array.older) <= 1

    settings = config.to_dict()
    with (
        open_workdir(path, settings) as workdir,
        RunProgress(settings, Console(quiet=True)) as progress,
    ):
        experiment = Experiment(
            config, Simulation(config), workdir, progress, Interruption(), observe=observe
        )
        workdir.finish({**experiment.run(), "environment": {}})


def found(path):
    """Lines without times, and the arrays of the selected state and the last one."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    states = {}
    for file in sorted(path.glob("states/*/*.npz")):
        with np.load(file) as arrays:
            states |= {
                f"{file.parent.name}:{name}": arrays[name] for name in arrays if name != "record"
            }
    return lines, states


def assert_same_files(path, other):
    (lines, states), (others, theirs) = found(path), found(other)
    assert lines == others
    assert states.keys() == theirs.keys()
    for name, value in states.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    play(config_of(), path)
    return path


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(whole, tmp_path):
    for stop_before in (2, 5):
        with pytest.raises(Stop):
            play(config_of(), tmp_path / "parts", stop_before)
    play(config_of(), tmp_path / "parts")
    assert_same_files(tmp_path / "parts", whole)


def test_the_numbers_are_those_of_arrays(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(server_state, "COPIED_ON_CPU", 2**40)
    play(config_of(), tmp_path / "arrays")
    assert found(tmp_path / "arrays")[0] == found(whole)[0]


def test_a_checkpoint_has_the_rows_of_clients_that_took_part_and_selection_none(whole):
    with np.load(whole / "checkpoints" / f"{ROUNDS}.npz") as saved:
        rows = {name: saved[name].shape for name in saved if "clients" in name}
    kernels = [shape for name, shape in rows.items() if shape[1:] == (64, 10)]
    assert len(kernels) == 1  # of the current state
    assert COHORT <= kernels[0][0] <= COHORT * ROUNDS
    assert not any(name.startswith("state/best") for name in rows)
