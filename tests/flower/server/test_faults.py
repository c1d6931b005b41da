"""Faults at every stage of a run, through the server's own code: who is lost, why, and what follows.

The method is `network_deployment.tally`, which sums: a step that is counted twice, or not at all, shows.
"""

import shutil

import numpy as np
import pytest
from local_network import FAULTS
from network_deployment import STEPS, Deployment, config_of, last_state, tally
from on_demand import on_demand

from jaxfed.config import assembly
from jaxfed.errors import UsageError
from jaxfed.flower.server import server_run
from jaxfed.flower.server.exchange import TooFewClients

NAME = "fedavg"  # whose place the method takes
SOME = ("deployment.quorum=0.6", "checkpoint_every=1")


@pytest.fixture(autouse=True)
def tallying(monkeypatch):
    monkeypatch.setattr(assembly, "make_algorithm", tally)
    monkeypatch.setattr(server_run, "make_algorithm", tally)


@pytest.fixture
def deployed(tmp_path):
    made = []

    def deploy(faults=None, *more):
        folder = tmp_path / f"{len(made)}"
        folder.mkdir()
        made.append(Deployment(folder, config_of(NAME, *SOME, *more), faults))
        return made[-1]

    return deploy


def expected(absent=None, rounds=3, clients=3, forgets=()):
    """The sums by a loop over clients; `absent` (step, round) -> client; `forgets` (client, round)."""
    w, totals = np.zeros(2, np.float32), {}
    for number in range(1, rounds + 1):
        there = list(range(clients))
        for place, step in enumerate(STEPS):
            there = [client for client in there if (absent or {}).get((step, number)) != client]
            for client in there:
                if (client, number) in forgets and step == STEPS[0]:
                    totals.pop(client, None)
                added = w + np.float32(1 + client) / np.float32(3)
                before = totals.get(client, np.zeros(2, np.float32))
                totals[client] = before + added * np.float32(1 + place)
            w = w + sum(totals[client] for client in there) / np.float32(7)
    return w


def result(deployment):
    (w,) = (
        np.frombuffer(value, np.float32)
        for key, value in last_state(deployment.place, NAME)[0].items()
        if "w" in key.rpartition("/")[2].split(".")
    )
    return w


LOST = {  # fault -> why the client is lost; None: it is not
    "killed": "code 5",
    "crash": "code 8",
    "crash after": "code 8",
    "raise": "code 2",
    "late": "no reply within 300 s",
    "duplicate": None,
    "delivered twice": None,
    "garbage": "step is malformed: ",
    "not finite": "total is not finite",
    "other step": "its reply belongs to another step or client",
    "other client": "its reply belongs to another step or client",
    "other node": "node 1011 replied in place of node 11",
    "twice with other content": "StepRefused: step",
    "unreadable": "step is malformed: ",
    "other form": "total is float32 [3], not float32 [2]",
    "other type": "total is float64 [2], not float32 [2]",
    "out of range": "count is below 0",
}


def test_the_table_has_every_fault():
    assert set(LOST) == set(FAULTS)


@pytest.mark.sample(6)
@pytest.mark.parametrize("step", on_demand(STEPS, at_once=["update", "show"]))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_its_client_the_rest_of_its_round(deployed, step, fault):
    there = deployed({(11, step, 2): fault})
    if fault == "killed":
        there.network.revives = True
    began = there.network.clock()
    there.serve()
    assert there.network.clock() - began < 400  # one deadline and little else
    if LOST[fault] is None:
        assert there.reasons() == {}
        np.testing.assert_array_equal(result(there), expected())
        return
    ((where, lost),) = there.reasons().items()
    assert where == (step, 2)
    assert lost.keys() == {1}
    assert LOST[fault] in lost[1]
    np.testing.assert_array_equal(result(there), expected({(step, 2): 1}))


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", [fault for fault, reason in LOST.items() if reason])
def test_a_fault_at_the_registration_stops_the_run_before_its_first_round(deployed, fault):
    if fault in ("twice with other content", "other type"):
        pytest.skip("a registration may be repeated, and has its sums in this type anyway")
    fault = "other form" if fault == "out of range" else fault
    there = deployed({(11, "registration", 0): fault}, "rounds=1")
    with pytest.raises(
        UsageError, match=r"clients 1 of 3 are missing; refused: node 11: \S"
    ) as line:
        there.serve()
    assert "\n" not in str(line.value)
    assert not (there.place / "stages.jsonl").exists()
    there.network.revive(11)
    there.serve()
    np.testing.assert_array_equal(result(there), expected(rounds=1))


@pytest.mark.parametrize("fault", [fault for fault, reason in LOST.items() if not reason])
def test_a_registration_that_is_repeated_is_one_registration(deployed, fault):
    there = deployed({(11, "registration", 0): fault}, "rounds=1")
    there.serve()
    np.testing.assert_array_equal(result(there), expected(rounds=1))


def test_too_few_clients_stop_the_run_in_one_line_and_the_same_command_continues(deployed):
    there = deployed({(11, "measure", 2): "killed", (12, "measure", 2): "late"})
    with pytest.raises(TooFewClients) as line:
        there.serve()
    assert str(line.value) == (
        "round 2, measure: 1 of 3 clients answered, 2 are needed; missing: client 1 (code 5); "
        "client 2 (no reply within 300 s); the run stops; the same command continues it"
    )
    there.network.revive(11)
    there.serve()
    np.testing.assert_array_equal(result(there), expected())


def test_a_client_without_its_state_begins_anew_in_the_next_round(deployed):
    there = deployed()
    ask = there.network.clients[11]
    gone = []

    def loses(request):
        if (request["step.name"], request["step.round"]) == ("update", 2) and not gone:
            states = list(there.folders[1].glob("state/*/*.state"))
            gone.extend(states)
            for file in states:
                file.unlink()
        return ask(request)

    there.network.clients[11] = loses
    there.serve()
    ((where, lost),) = there.reasons().items()
    assert where == ("update", 2)
    assert "StateLost: the state after step 3 is not here" in lost[1]
    absent = {("update", 2): 1}
    np.testing.assert_array_equal(result(there), expected(absent, forgets={(1, 3)}))


def changed_data(there):
    train = there.folders[1] / "train.npz"
    arrays = dict(np.load(train))
    arrays["x"][0] += 1
    np.savez(train, **arrays)


def no_folder(there):
    shutil.rmtree(there.folders[1])


CHANGES = {
    "data": (changed_data, "StepRefused: this client's data are not those of its registration"),
    "folder": (no_folder, "UsageError"),
    "cohort": (
        lambda there: (there.folders[1] / "client.toml").write_text(
            'number = 1\nname = "client-1"\nleast_clients = 4\n'
        ),
        "StepRefused: a round of 3 clients; client.toml has least_clients = 4",
    ),
    "number": (
        lambda there: (there.folders[1] / "client.toml").write_text('number = 2\nname = "x"\n'),
        "StepRefused: this is client 2, not client 1",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_client_that_changes_after_its_registration_is_lost_from_then_on(deployed, case):
    change, reason = CHANGES[case]
    there = deployed({(11, "update", 2): "killed"})  # its node starts again, with another folder
    receive, done = there.network.receive, []

    def changing(identifiers):
        if not done and 11 in there.network._gone:
            change(there)
            there.network.revive(11)
            done.append(1)
        return receive(identifiers)

    there.network.receive = changing
    there.serve()
    reasons = there.reasons()
    assert set(reasons) == {("update", 2), ("update", 3)}
    assert reason in reasons["update", 3][1]
    absent = {("update", 2): 1, ("update", 3): 1}
    np.testing.assert_array_equal(result(there), expected(absent))


STARTS = {
    "damaged": ("number =", "UsageError"),
    "a number beyond": ("number = 3", "there is no client number 3"),
    "another's number": ("number = 0", "client number 0 is that of node 10"),
}


@pytest.mark.parametrize("case", STARTS)
def test_a_client_that_does_not_fit_stops_the_start_in_one_line(deployed, case):
    line, reason = STARTS[case]
    there = deployed()
    (there.folders[1] / "client.toml").write_text(f'{line}\nname = "b"\nleast_clients = 2\n')
    with pytest.raises(UsageError) as caught:
        there.serve()
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_data_at_a_later_start_is_refused(deployed):
    there = deployed({(11, "update", 2): "killed", (12, "update", 2): "killed"})
    with pytest.raises(TooFewClients):
        there.serve()
    there.network.revive(11)
    there.network.revive(12)
    changed_data(there)
    with pytest.raises(UsageError, match="this client's data are not those of its registration"):
        there.serve()


WRONG = {
    "federation.num_clients=0": "the server of a network does not see how many clients the data have",
    "clock.seconds_per_example=0.01": "a network has times of its own",
}


@pytest.mark.parametrize("setting", WRONG)
def test_what_a_network_cannot_play_is_refused_at_once(tmp_path, setting):
    there = Deployment(tmp_path, config_of(NAME, *SOME))
    there.config = config_of(NAME, *SOME, setting)
    with pytest.raises(UsageError, match=rf"config\.{setting}: {WRONG[setting]}"):
        there.serve()
    assert not there.place.exists()
