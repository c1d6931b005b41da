"""FedAvg under masks with a client that is killed in a round: the bits of a simulation that it leaves."""

import pytest
from network_deployment import FIRST_NODE, Deployment, config_of

from jaxfed.api.run import run as simulate
from jaxfed.flower.deployment import comparison

MASKED = ("training.sums=masked_resilient", "federation.num_clients=4", "rounds=2")


@pytest.mark.parametrize("method", ["fedavg", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_a_client_killed_under_masks_is_a_departure(tmp_path, method):
    """It sends its upload in no round, as `training.presence` says to the simulation."""
    config = config_of(method, *MASKED)
    there = Deployment(tmp_path, config, {(FIRST_NODE + 1, "upload", 1): "killed"})
    there.serve()
    reasons = there.reasons()
    assert reasons.pop(("upload", 1)) == {1: "code 5"}
    assert list(reasons.values()) == [{1: "its node is not connected"}]
    config.training.presence = ("1@upload",)
    simulate(config, workdir=tmp_path / "simulation", progress=False)
    found = comparison.compare(there.place, tmp_path / "simulation", method)
    assert found.num_arrays > 2
    assert (found.largest, found.labels) == (0, 0)
