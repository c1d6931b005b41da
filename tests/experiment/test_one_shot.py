"""A method that labels in one shot has one round, where a round has all clients."""

import io

import numpy as np
import pytest
from rich.console import Console

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file as config_file
from jaxfed.config.data.simulation import Simulation
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.run.simulate import simulate
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.host.interruption import Interruption


class Stop(Exception):
    pass


@pytest.fixture
def played(monkeypatch):
    """(method, round) as they are played, of two methods that count; and where they are to stop."""
    seen, stops = [], set()

    def counting(name, one_shot):
        def round(state, cohort, key):
            if (name, int(state) + 1) in stops:
                raise Stop
            seen.append((name, int(state) + 1))
            return state + 1, {"communication": {"upload_bytes": 10, "download_bytes": 0}}

        def init(key, federation):
            if (name, 0) in stops:
                raise Stop
            return np.asarray(0)

        @method(takes=("num_classes",), one_shot=one_shot)
        def made(*, num_classes):
            return FederatedAlgorithm(
                init,
                round,
                lambda state, federation: {"test_accuracy": float(state)},
            )

        return made

    for name, one_shot in (("labeling", True), ("several", False)):
        monkeypatch.setitem(ALGORITHMS, name, counting(name, one_shot))
    return seen, stops


def config_of(**keys):
    config = config_file.load("ml_collections_configs/xclp_digits.py").unlock()
    config.algorithm, config.baselines = "labeling", ("several",)
    config.num_repeats, config.rounds = 1, 3
    config.update(keys)
    return config


def run(config, path):
    """The summary's methods, and what was shown."""
    stream, settings = io.StringIO(), config.to_dict()
    with (
        open_workdir(path, settings) as workdir,
        RunProgress(settings, Console(file=stream, width=200)) as progress,
    ):
        experiment = Experiment(config, Simulation(config), workdir, progress, Interruption())
        return experiment.run()["algorithms"], stream.getvalue()


@pytest.mark.parametrize(("cohort_size", "rounds"), [(0, 1), (10, 1), (4, 3)])
def test_how_many_rounds_it_has(played, cohort_size, rounds, tmp_path):
    config = config_of(cohort_size=cohort_size)
    methods, shown = run(config, tmp_path)
    of_labeling = [("labeling", number) for number in range(1, rounds + 1)]
    assert played[0] == [*of_labeling, *(("several", number) for number in (1, 2, 3))]
    assert methods["labeling"]["communication"]["upload_bytes"]["mean"] == 10 * rounds
    assert methods["labeling"]["test_accuracy"]["mean"] == rounds  # judged after its last
    assert f"labeling        round {rounds}/{rounds}  test accuracy" in shown
    federation = Simulation(config).federation(0)
    labeling = ALGORITHMS["labeling"](num_classes=10)
    told = simulate(labeling, federation, rounds=3, cohort_size=cohort_size)
    assert len(told.records) == rounds


def test_it_is_not_played_again_where_the_rest_resumes(played, tmp_path):
    seen, stops = played
    stops.add(("several", 1))
    with pytest.raises(Stop):
        run(config_of(checkpoint_every=1), tmp_path)
    stops.symmetric_difference_update({("several", 1), ("labeling", 0)})
    methods, _ = run(config_of(checkpoint_every=1), tmp_path)
    assert seen == [("labeling", 1), *(("several", number) for number in (1, 2, 3))]
    assert methods["labeling"]["test_accuracy"]["mean"] == 1
