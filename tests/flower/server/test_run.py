"""Whole runs through the same code as Flower's processes, in this process: equal to the simulation."""

import pytest
from network_deployment import CONSISTENT, VIEWS, Deployment, config_of
from on_demand import on_demand

from jaxfed.api.run import run as simulate
from jaxfed.flower.deployment import comparison
from jaxfed.flower.server import server_run


@pytest.mark.parametrize("name", on_demand(["fedavg", "scaffold", *CONSISTENT], at_once=["fedavg"]))
def test_a_run_is_the_simulation(tmp_path, name):
    config = config_of(name, *(VIEWS * (name in CONSISTENT)))
    there = Deployment(tmp_path, config)
    there.serve()
    simulate(config, workdir=tmp_path / "simulation", progress=False)
    found = comparison.compare(there.place, tmp_path / "simulation", name)
    print(found)
    assert found.largest == 0
    assert found.labels == 0


def test_examples_are_vectors_too(tmp_path):
    """The check has no clients' sums of features yet, and there is one for each feature."""
    config = config_of("fedavg", "preprocessing.kind=standardized", "model.name=mlp")
    server_run.check(config, Deployment(tmp_path, config).held)
