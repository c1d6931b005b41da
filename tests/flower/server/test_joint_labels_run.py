"""XCLP within rounds of a deployment: a client lost at any letter has left that round alone."""

import json

import pytest
from network_deployment import FIRST_NODE, Deployment, config_of, state_of

SECURE = (
    *("xclp.hamming=masked", "xclp.influence=columns", "xclp.row_sums=masked_resilient"),
    *("xclp.num_bits=64", "training.labeled_only_rounds=0", "dataset.train_size=90"),
    *("deployment.quorum=0.6", "rounds=2"),
)
LETTERS = (
    *("embed", "join", "give_group_secret", "send_own", "send_positions", "announce"),
    *("share_secrets", "upload", "reveal", "end", "update"),
)
FAULTS = ("late", "garbage", "crash after", "twice with other content")
CASES = [f"{fault} at {letter}" for letter in LETTERS for fault in FAULTS]
HARMLESS = ("crash after",)  # the same message again gets the stored reply


def is_lost_to(fault, letter, there):
    """Check what stages.jsonl says of the fault; returns True if it cost the client its round."""
    reasons = there.reasons()
    if fault in HARMLESS:
        assert reasons == {}
        return False
    ((where, lost),) = reasons.items()
    assert where == (letter, 1)
    assert lost.keys() == {1}
    return True


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_client_lost_at_a_letter_has_left_its_round(tmp_path, case):
    fault, letter = case.split(" at ")
    config = config_of("fedavg_xclp", *SECURE)
    there = Deployment(tmp_path, config, {(FIRST_NODE + 1, letter, 1): fault})
    there.serve()
    is_lost = is_lost_to(fault, letter, there)
    asked = {
        (line["stage"], line["round"]): line["clients"]
        for line in there.lines()
        if "clients" in line and "why" not in line
    }
    rest = [0, 2] if is_lost else [0, 1, 2]
    if letter != "update":
        assert asked["update", 1] == rest
    assert asked["update", 2] == [0, 1, 2]  # it is back
    first, second = (
        json.loads(line)
        for line in (there.place / "metrics.jsonl").read_text().splitlines()
        if json.loads(line).get("round")
    )
    assert min(first["pseudo_labeled"], second["pseudo_labeled"]) > 0.5
    for folder in there.folders:
        state = state_of(folder)
        assert state["label"]
        assert state["once"] is False
        assert not any(state[name] for name in ("seed", "past", "vectors"))
