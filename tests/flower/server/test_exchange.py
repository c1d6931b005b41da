"""Steps over a network with every fault: bounded time, the right clients lost, nothing counted twice."""

import numpy as np
import pytest
from local_network import WORK_S, LocalNetwork

from jaxfed.flower.client import client_step
from jaxfed.flower.messages import pytrees
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


@pytest.mark.parametrize("fault", ["late", "crash after", "not finite"])
def test_a_fault_costs_its_client_one_step_and_nobody_else_anything(tmp_path, fault):
    """Sums of all later steps are those of a client that was not asked in the step it was lost in."""
    deployment = Deployment(tmp_path, {(50, 2): fault})
    deployment.ask(1)
    second = deployment.ask(2, x=10)
    assert second.seconds <= DEADLINE
    assert second.lost.keys() == {1}
    assert sums(second) == {0: 11, 2: 11}
    assert sums(deployment.ask(3, x=100)) == {0: 111, 1: 101, 2: 111}
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
