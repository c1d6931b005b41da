"""Simulated time in experiments: resumed runs, lines and files, runs without it, audits."""

import numpy as np
import pytest
from on_demand import on_demand
from rich.console import Console

from jaxfed.config import file as config_file
from jaxfed.config.data.simulation import Simulation
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.interruption import Interruption

CONFIG = "ml_collections_configs/federated_optimization.py:clock,smoke"
ROUNDS = 8


class Stop(Exception):
    pass


def config_of(*overrides):
    small = ("dataset.train_size=300", f"rounds={ROUNDS}", "evaluate_every=2", "checkpoint_every=1")
    config = config_file.load(CONFIG, (*small, "baselines=('fedbuff',)", *overrides))
    config.algorithm = "fedavg"
    return config


def run(config, path, stop_at=()):
    """Metrics and final states of an experiment that is stopped in these rounds, and started again."""
    settings = config.to_dict()
    for number in (*stop_at, None):

        def stop(observed, number=number):
            if (observed.name, observed.played.round) == number:
                raise Stop

        with (
            open_workdir(path, settings) as workdir,
            RunProgress(settings, Console(quiet=True)) as progress,
        ):
            experiment = Experiment(
                config, Simulation(config), workdir, progress, Interruption(), observe=stop
            )
            if number is not None:
                with pytest.raises(Stop):
                    experiment.run()
            else:
                experiment.run()
                lines = workdir.read_metrics()
    for line in lines:
        line.pop("seconds", None)
    states = {
        folder.name: arrays(Checkpoints(folder).latest())
        for folder in sorted((path / "states").iterdir())
    }
    return lines, states


def arrays(checkpoint):
    with np.load(checkpoint.file) as stored:
        return {name: stored[name].tolist() for name in stored.files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(config_of(), tmp_path_factory.mktemp("whole"))


STOPS = {
    "once": [("fedbuff", 4)],
    "often": [("fedavg", 3), ("fedbuff", 1), ("fedbuff", 2), ("fedbuff", 5), ("fedbuff", 8)],
}


@pytest.mark.parametrize("stops", on_demand(STOPS, at_once=["once"]))
def test_a_resumed_run_has_the_same_bits(whole, tmp_path, stops):
    assert run(config_of(), tmp_path, STOPS[stops]) == whole


def test_lines_have_simulated_time(whole):
    lines, states = whole
    for name in ("fedavg", "fedbuff"):
        own = [line for line in lines if line["algorithm"] == name and line["round"]]
        times = [line["simulated_seconds"] for line in own]
        assert len(times) == ROUNDS
        assert times == sorted(times)
        assert {line["clients"] for line in own} == {5}
        assert ("staleness" in own[-1]) == (name == "fedbuff")
    assert [name for name in sorted(states) if any("memory" in leaf for leaf in states[name])] == [
        "fedbuff-0-last"
    ]


def test_time_alone_changes_no_model(whole, tmp_path):
    """Without a clock, and with one that only counts: the same lines but for the time."""
    timed, states = run(config_of("baselines=()"), tmp_path / "timed")
    settings = [
        f"clock.{key}=0" for key in ("seconds_per_example", "seconds_per_round", "speed_spread")
    ]
    plain, of_plain = run(config_of(*settings, "baselines=()"), tmp_path / "plain")
    assert not any("simulated_seconds" in line for line in plain)
    for line in timed:
        line.pop("simulated_seconds", None)
    assert timed == plain
    assert states == of_plain
