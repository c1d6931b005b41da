"""Random faults through ten rounds: the bits of a simulation that the same clients have left."""

from dataclasses import replace

import numpy as np
import pytest
from local_network import FAULTS
from network_deployment import FIRST_NODE, Deployment, config_of

from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.federation.cohort import emptied
from jaxfed.flower.deployment import trial
from jaxfed.host.interruption import Interruption

# One makes all whole numbers negative, of which an update need not have any.
PLAYED = [fault for fault in FAULTS if fault != "out of range"]


def without(algorithm, left):
    """The method whose rounds are played as if clients {round: clients} had not been drawn."""

    def played(state, cohort, key):
        gone = left.get(int(state.round) + 1, ())
        is_there = ~np.isin(cohort.client_id, list(gone))
        return algorithm.round(state, emptied(cohort, is_there), key)

    return algorithm._replace(round=played)


def simulate(config, place, left):
    def make(*arguments, **keywords):
        return without(make_algorithm(*arguments, **keywords), left)

    settings = config.to_dict()
    with RunProgress(settings) as progress, open_workdir(place, settings) as directory:
        experiment = Experiment(config, Simulation(config), directory, progress, Interruption())
        directory.finish(replace(experiment, make=make).run())


@pytest.mark.parametrize(
    ("name", "clients", "rounds", "seed"),
    [
        ("fedavg", 3, 5, 7),
        pytest.param("fedavg", 3, 10, 1, marks=pytest.mark.slow),
        pytest.param("scaffold", 4, 10, 2, marks=pytest.mark.slow),
        *(
            pytest.param(name, clients, 30, seed, marks=pytest.mark.slow)
            for name, clients in (("fedavg", 4), ("scaffold", 3))
            for seed in (3, 4)
        ),
    ],
)
def test_random_faults_are_departures(tmp_path, name, clients, rounds, seed):
    rng = np.random.default_rng(seed)
    faults = {
        (FIRST_NODE + client, "update", number): str(rng.choice(PLAYED))
        for number in range(1, rounds + 1)
        for client in range(1, clients)  # client 0 stays, so that a round has somebody
        if rng.random() < 0.4
    }
    config = config_of(
        name,
        f"rounds={rounds}",
        f"federation.num_clients={clients}",
        "deployment.quorum=0.01",
    )
    there = Deployment(tmp_path, config, faults)
    there.network.revives = True
    there.serve()
    left = {number: lost for (_, number), lost in there.reasons().items()}
    assert len(left) > rounds // 4
    simulate(config, tmp_path / "simulation", left)
    found = trial.compare(there.place, tmp_path / "simulation", name)
    assert found.largest == 0
    assert found.labels == 0
