"""Steps over a network with every fault: bounded time, the right clients lost, nothing counted twice."""

import numpy as np
import pytest
from local_network import FAULTS, WORK_S, LocalNetwork

from jaxfed.flower.client import client_step
from jaxfed.flower.messages import pytrees
from jaxfed.flower.messages.steps import step_of
from jaxfed.flower.server.exchange import Exchange, TooFewClients

NODES = {0: 70, 1: 50, 2: 60}  # replies come in another order than clients
DEADLINE = 300.0
TEMPLATE = {"sum": np.zeros(2, np.float32)}


class Client:
    """A client that sums what it gets over all steps, in a folder."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.calls = folder, 0

    def __call__(self, request):
        return client_step.perform(
            self.folder, request, self.compute, client=request["step.client"]
        )

    def compute(self, step, state, content):
        self.calls += 1
        total = content["x"] + (np.zeros(2, np.float32) if state is None else state["sum"])
        return {"sum": total}, {"sum": total}


def read(client, content):
    return pytrees.from_record(content, TEMPLATE)["sum"].tolist()


class Deployment:
    """Three clients, a network and an exchange."""

    def __init__(self, folder, faults=None, **options):
        self.clients = {node: Client(folder / str(node)) for node in NODES.values()}
        self.network = LocalNetwork(self.clients, faults)
        self.exchange = self.start(**options)

    def start(self, **options):
        clock = self.network.clock
        keywords = {"run": "r", "deadline": DEADLINE, "clock": clock, "sleep": clock.sleep}
        return Exchange(self.network, NODES, **(keywords | options))

    def ask(self, round_, x=1.0, **options):
        content = {"x": np.full(2, x, np.float32)}
        keywords = {"round": round_, "read": read, "continues": True}
        return self.exchange.ask("train", dict.fromkeys(NODES, content), **(keywords | options))


def sums(answers):
    return {client: reply[0] for client, reply in answers.replies.items()}


def test_replies_are_in_the_order_of_clients(tmp_path):
    deployment = Deployment(tmp_path)
    answers = deployment.ask(1)
    assert list(answers.replies) == [0, 1, 2]
    assert answers.lost == {}
    assert (answers.bytes_down, answers.bytes_up) == (3 * 8, 3 * 8)
    assert WORK_S <= answers.seconds < WORK_S + 0.2
    assert answers.enough(1.0) is answers


def test_a_request_says_its_step(tmp_path):
    deployment = Deployment(tmp_path)
    deployment.ask(1)
    deployment.exchange.ask("judge", {1: {}}, round=2)
    said = [step_of(request) for request in deployment.network.received[50]]
    assert [step[:5] for step in said] == [("r", 1, "train", 1, 1), ("r", 2, "judge", 2, 1)]


NO_STEP = "step is malformed: client, name, number, round, run missing"
# fault, whether the client is lost, its reason, and when
OUTCOMES = {
    "killed": ("code 5", 41),
    "crash": ("code 8", 70),
    "crash after": ("code 8", 70),
    "raise": ("code 2", 10),
    "late": (f"no reply within {DEADLINE:g} s", DEADLINE),
    "duplicate": (None, 0),
    "delivered twice": (None, 0),
    "garbage": (NO_STEP, 1),
    "not finite": ("sum is not finite", 1),
    "other step": ("its reply belongs to another step or client", 1),
    "other client": ("its reply belongs to another step or client", 1),
    "other node": ("node 1050 replied in place of node 50", 1),
    "twice with other content": (
        "its step failed: StepRefused: step 2 was sent again with other content",
        1,
    ),
    "other form": ("sum is float32 [3], not float32 [2]", 1),
    "other type": ("sum is float64 [2], not float32 [2]", 1),
    "out of range": (None, 0),  # for a method's own check; this one has no counts
    "unreadable": (NO_STEP, 1),
}


def test_the_table_has_every_fault():
    assert OUTCOMES.keys() == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_its_client_one_step_and_nobody_else_anything(tmp_path, fault):
    """Sums of all later steps are those of a client that was not asked in the step it was lost in."""
    deployment = Deployment(tmp_path, {(50, 2): fault})
    reason, seconds = OUTCOMES[fault]
    deployment.ask(1)
    second = deployment.ask(2, x=10)
    assert second.seconds <= DEADLINE
    if reason is None:
        assert second.lost == {}
        expected = {0: 11, 1: 11, 2: 11}
    else:
        assert second.lost.keys() == {1}
        assert second.lost[1].reason == reason
        expected = {0: 11, 2: 11}
    assert sums(second) == expected
    assert seconds <= second.seconds < seconds + 2
    deployment.network.revive(50)
    third = deployment.ask(3, x=100)
    assert sums(third) == {0: 111, 1: 111 if reason is None else 101, 2: 111}
    assert deployment.clients[70].calls == 3


def test_a_node_that_is_not_connected_is_lost_at_once(tmp_path):
    deployment = Deployment(tmp_path, {(50, 1): "killed"})
    deployment.ask(1)
    answers = deployment.ask(2)
    assert answers.lost[1].reason == "its node is not connected"
    assert answers.seconds < 2


def test_too_few_clients_are_one_line(tmp_path):
    """Who is missing, why, and what follows; one answer at least is needed."""
    nobody = Deployment(tmp_path).exchange.ask("train", {}, round=1)
    with pytest.raises(
        TooFewClients, match=r"0 of 0 clients answered, 1 are needed; missing: all;"
    ):
        nobody.enough(0.0)
    (tmp_path / "b").mkdir()
    deployment = Deployment(tmp_path / "b", {(50, 1): "killed", (60, 2): "garbage"})
    assert deployment.ask(1).enough(2 / 3)
    with pytest.raises(TooFewClients) as caught:
        deployment.ask(2).enough(0.6)
    assert str(caught.value) == (
        "round 2, train: 1 of 3 clients answered, 2 are needed; missing: client 1 (its "
        "node is not connected); client 2 (step is malformed: client, "
        "name, number, round, run missing); the run stops; the same command continues it"
    )


def test_texts_of_clients_are_made_printable(tmp_path):
    def noisy(request):
        reply = client_step.answer(request, lambda step, content: content)
        return reply | {"error.kind": "E\n\x1b[31m", "error.key": "", "error.text": "x" * 900}

    deployment = Deployment(tmp_path)
    deployment.network.clients[50] = noisy
    reason = deployment.ask(1).lost[1].reason
    assert reason.startswith("its step failed: E [31m: xxx")
    assert len(reason) < 400


def test_a_client_that_lost_its_state_is_known_by_it(tmp_path):
    deployment = Deployment(tmp_path)
    deployment.ask(1)
    (tmp_path / "50" / "state" / "r" / "1.state").unlink()
    assert deployment.ask(2).lost[1].kind == "StateLost"
    del deployment.exchange.states[1]  # what a method without memory does
    assert sums(deployment.ask(3)) == {0: 3, 1: 1, 2: 3}


def test_clients_drop_states_only_after_a_commit(tmp_path):
    deployment = Deployment(tmp_path)

    def stored():
        return sorted(path.name for path in (tmp_path / "50" / "state" / "r").glob("*.state"))

    for round_ in (1, 2, 3):
        deployment.ask(round_)
    assert stored() == ["1.state", "2.state", "3.state"]
    deployment.exchange.committed = dict(deployment.exchange.states)
    deployment.ask(4)
    assert stored() == ["3.state", "4.state"]


def test_random_faults_change_only_their_clients_steps(tmp_path):
    """Twenty rounds of faults at random, beside sums of the rounds that each client answered."""
    rng = np.random.default_rng(3)
    faults = {
        (node, number): str(rng.choice(FAULTS))
        for node in NODES.values()
        for number in range(1, 21)
        if rng.random() < 0.4
    }
    deployment = Deployment(tmp_path, faults)
    expected = dict.fromkeys(NODES, 0.0)
    num_lost = 0
    for number in range(1, 21):
        answers = deployment.ask(number, x=number)
        assert answers.seconds <= DEADLINE + 0.2
        assert sorted([*answers.replies, *answers.lost]) == list(NODES)
        for client, total in sums(answers).items():
            expected[client] += number
            assert total == expected[client]
        num_lost += len(answers.lost)
        for node in NODES.values():
            deployment.network.revive(node)
        if number % 3 == 0:
            deployment.exchange.committed = dict(deployment.exchange.states)
    assert num_lost > 5
