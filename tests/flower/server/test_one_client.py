"""One client alone makes no model: its weight, its counts and the norm of its change have limits.

A wrong reply costs its client the round. A mean that is no model is not kept, and the same command goes on
from the state before.
"""

import re

import numpy as np
import pytest
from network_deployment import METHODS, Deployment, config_of, last_state
from on_demand import on_demand

from jaxfed.flower.server.client_calls import UnusableModel

NODE = 11  # of client 1
TRAINED = [name for name in METHODS if name not in ("fedct", "xclp")]


def saying(there, step, wanted, value, round_=1):
    """Have client 1 say this in place of all numbers whose names contain `wanted`; returns their names."""
    honest, said = there.network.clients[NODE], set()

    def client(request):
        reply = honest(request)
        if (request["step.name"], request["step.round"]) != (step, round_):
            return reply
        for name, old in reply.items():
            is_number = isinstance(old, int) or getattr(old, "dtype", None) == np.float32
            if f".{wanted}" in f"{name}." and name.startswith("content.reply.") and is_number:
                said.add(name)
                reply[name] = int(value) if isinstance(old, int) else np.full_like(old, value)
        return reply

    there.network.clients[NODE] = client
    return said


def own_examples(there):
    with np.load(there.folders[1] / "train.npz") as arrays:
        return len(arrays["y"])


def reason(there):
    """Why client 1 is lost in the first step that it is lost in; nobody else is."""
    lost = list(there.reasons().values())
    assert lost
    assert all(each.keys() == {1} for each in lost)
    return lost[0][1]


@pytest.mark.parametrize("case", on_demand(TRAINED, at_once=["fedavg"]))
@pytest.mark.parametrize("times", [1e30, 1.1, -1])
def test_no_client_weighs_more_than_its_examples(tmp_path, case, times):
    name, settings = METHODS[case]
    there = Deployment(tmp_path, config_of(name, *settings, "rounds=1"))
    assert saying(there, "update", "update.weight.", own_examples(there) * times) is not None
    there.serve()
    more = r"\S+, above \d" if times > 0 else "no number from 0 on"
    assert re.search(f"weight is {more}", reason(there))


@pytest.mark.parametrize("case", on_demand(TRAINED, at_once=["fedavg"]))
@pytest.mark.parametrize("part", ["update.delta.", "update.correction.", "update.upload."])
def test_no_client_changes_the_model_beyond_the_largest_norm(tmp_path, case, part):
    name, settings = METHODS[case]
    there = Deployment(tmp_path, config_of(name, *settings, "rounds=1"))
    said = saying(there, "update", part, 3e38)
    there.serve()
    if not said:
        pytest.skip(f"{case} has no such part")
    assert "its reply has the norm " in reason(there)
    assert "above config.deployment.largest_norm=1e+06" in reason(there)


COUNTS = {  # step, name of the number, a value out of its range, reason
    "examples without labels": ("fedavg", "update", "unlabeled.", 1e30, "unlabeled is 1e+30"),
    "a loss": ("fedavg", "update", "update.metrics.", 3e38, " is 3e+38, above 1e+20"),
    "shown": ("protofssl", "show", "", 3e38, "its reply has the norm "),
    "points of XCLP": ("xclp", "join", "points.", 1000, "1000 points"),
    "points of FedAvg with XCLP": ("fedavg_xclp", "embed", "points.", 1000, "1000 points"),
}
EXTRA = {"shown": ("protofssl.prototype_network=mean",)}


AT_ONCE = ["examples without labels", "a loss", "points of XCLP"]


@pytest.mark.parametrize("case", on_demand(COUNTS, at_once=AT_ONCE))
def test_no_client_counts_more_examples_than_in_its_registration(tmp_path, case):
    method, step, number, value, why = COUNTS[case]
    name, settings = METHODS[method]
    there = Deployment(tmp_path, config_of(name, *settings, *EXTRA.get(case, ()), "rounds=1"))
    assert saying(there, step, number, value) is not None
    there.serve()
    assert why in reason(there)


def test_a_mean_that_is_no_model_is_not_kept(tmp_path):
    """Without a limit of norms 1e36 of one client is finite in the mean, and nan in the next round."""
    free = ("deployment.largest_norm=3e38", "checkpoint_every=1", "rounds=3")
    there = Deployment(tmp_path / "one", config_of("fedavg", *free))
    saying(there, "update", "update.delta.", 1e36, round_=2)
    for _ in range(2):
        with pytest.raises(UnusableModel) as caught:
            there.serve()
        assert str(caught.value).startswith(
            "round 2: the new model is not finite or too large, and"
        )
        assert [line["round"] for line in there.lines() if line["stage"] == "end"] == [1]
    there.config.deployment.largest_norm = 1e6
    there.serve()
    assert there.reasons().keys() == {("update", 2)}

    straight = Deployment(tmp_path / "two", config_of("fedavg", "rounds=3"))
    saying(straight, "update", "update.delta.", 1e36, round_=2)
    straight.serve()
    assert last_state(there.place, "fedavg")[0] == last_state(straight.place, "fedavg")[0]
