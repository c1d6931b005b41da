"""FedCT by clients that keep their models: the simulation's labels of public examples, with faults too."""

import io
import json

import numpy as np
import pytest
from network_deployment import FIRST_NODE, Deployment, config_of, last_state, state_of
from on_demand import on_demand

from jaxfed.api.run import run as simulate
from jaxfed.flower.deployment import comparison

TREES = ("learner.name=decision_tree", "federation.public_size=60", "deployment.quorum=0.6")
SUMS = ("plaintext", "masked", "masked_resilient")


@pytest.mark.sample(1)
@pytest.mark.parametrize("sums", on_demand(SUMS, at_once=["plaintext", "masked"]))
def test_labels_are_the_simulations(tmp_path, sums):
    config = config_of("fedct", *TREES, f"fedct.sums={sums}")
    there = Deployment(tmp_path, config)
    there.serve()
    simulate(config, workdir=tmp_path / "simulation", progress=False)
    found = comparison.compare(there.place, tmp_path / "simulation", "fedct")
    assert found.num_arrays > 2
    assert found.largest == 0
    (last,) = (tmp_path / "simulation" / "states" / "fedct-0-last").glob("*.npz")
    with np.load(last) as arrays:
        names = [name for name in arrays.files if name.startswith("state/learner.")]
        models = [arrays[name] for name in names]
    for client, folder in enumerate(there.folders):
        with np.load(io.BytesIO(state_of(folder)["model"])) as own:
            for number, rows in enumerate(models):
                np.testing.assert_array_equal(own[str(number)], rows[client])
    for folder in there.folders:  # between sessions a client keeps its model and no secret
        own = state_of(folder)
        assert own["model"]
        assert own["once"] is False
        assert own["seed"] == own["past"] == own["tally"] == b""


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", ["late", "garbage"])
def test_a_client_lost_in_a_session_keeps_its_model(tmp_path, fault):
    config = config_of("fedct", *TREES, "fedct.sums=masked_resilient")
    faults = {(FIRST_NODE + 1, "upload", 2): fault}
    there = Deployment(tmp_path, config, faults)
    there.serve()
    ((where, lost),) = there.reasons().items()
    assert where == ("upload", 2)
    assert lost.keys() == {1}
    votes = [
        json.loads(line)["clients"]
        for line in (there.place / "metrics.jsonl").read_text().splitlines()
        if json.loads(line).get("round")
    ]
    assert votes == [3, 3, 3]  # all take their turn in round 3, too
    assert state_of(there.folders[1])["model"]
    state, _ = last_state(there.place, "fedct")
    assert any(np.frombuffer(leaf, np.int32).size == 60 for leaf in state.values())
