"""Requests that only a malicious server sends: a client computes nothing it should not, and stays usable.

The first letters of a session are recorded at client 0 of three. Each test puts the folder back to where it
was before a letter, and sends requests of its own.
"""

import io
import json
import os
import shutil
from contextlib import redirect_stdout

import numpy as np
import pytest
from network_deployment import Deployment, config_of, state_of

from jaxfed.flower.client import client_run, client_step
from jaxfed.flower.messages import setup
from jaxfed.flower.messages.steps import failure_of
from jaxfed.secure.session.remote_calls import Call, CallMessage, parsed_call_message

XCLP = (
    *("xclp.hamming=masked", "xclp.influence=columns", "xclp.num_bits=64", "xclp.row_sums=masked"),
    *("dataset.train_size=40", "rounds=1", "preprocessing.kind=identity"),
)
TREES = (
    *("learner.name=decision_tree", "federation.public_size=20", "dataset.train_size=60"),
    *("fedct.sums=masked", "fedct.release=xor", "fedct.epsilon=30"),
)


class Stopped(BaseException):
    """The server has seen enough."""


def recorded(place, config, last):
    """Play a run until client 2 has answered `last`: {step: (client 0's folder before it, request)}."""
    there, found = Deployment(place, config), {}

    def recording(node, serve):
        def served(request):
            name = request["step.name"]
            if node == 10:
                found[name] = place / f"before {name}", dict(request)
                shutil.copytree(there.folders[0], found[name][0])
            reply = serve(request)
            assert failure_of(reply) is None, failure_of(reply)
            if (node, name) == (12, last):
                raise Stopped
            return reply

        return served

    network = there.network
    network.clients = {node: recording(node, serve) for node, serve in network.clients.items()}
    with pytest.raises(Stopped):
        there.serve()
    return found


@pytest.fixture(scope="module")
def xclp(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("xclp"), config_of("xclp", *XCLP), "send_own")


@pytest.fixture(scope="module")
def fedct(tmp_path_factory):
    config = config_of("fedct", *TREES)
    return recorded(tmp_path_factory.mktemp("fedct"), config, "give_group_secret")


class Client:
    """Client 0 before a step of a recording."""

    def __init__(self, recording, step, folder):
        before, request = recording[step]
        self.request = dict(request)
        self.folder, self.number = folder, self.request["step.number"]
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        self.calls, self.frames = [], []
        if "content.message.message" in self.request:
            self.calls, self.frames = parsed_call_message(self.request["content.message.message"])

    def reply(self, **changes):
        """Perform the recorded request; in the names of `changes` a dot is `__`."""
        named = {name.replace("__", "."): value for name, value in changes.items()}
        return client_run.perform({**self.request, **named}, folder=self.folder, kept={})

    def accepts(self, **changes):
        failure = failure_of(self.reply(**changes))
        assert failure is None, failure

    def refuses(self, **changes):
        """Return the reason for no answer: class and text, which may stay on the client's console."""
        console = io.StringIO()
        with redirect_stdout(console):
            reply = self.reply(**changes)
        assert not any(name.startswith("content.") for name in reply)
        failure = failure_of(reply)
        text = failure.text or console.getvalue().partition(f"{failure.kind}: ")[2]
        return f"{failure.kind} {text}".strip()

    def letter(self, *more, frames=(), replaced=lambda call: call):
        """A change: the recorded letter with other calls, and more of them."""
        calls = [*map(replaced, self.calls), *(Call(*call) for call in more)]
        letter = CallMessage(calls, [*self.frames, *frames]).to_bytes()
        return {"content__message__message": letter}

    def terms(self, **changes):
        """A change of the terms."""
        terms = json.loads(self.request["content.message.terms"]) | changes
        return {"content__message__terms": json.dumps(terms)}

    def later(self, steps=1, *calls, after=None):
        """Changes: a later step with these calls, from the state after the recorded one."""
        message = CallMessage([Call(*call) for call in calls], []).to_bytes()
        return {
            "step__number": self.number + steps,
            "step__after": self.number if after is None else after,
            "content__message__message": message,
        }

    def states(self):
        return sorted(int(file.stem) for file in self.folder.glob("state/*/*.state"))


@pytest.fixture
def before(tmp_path):
    return lambda *recorded: Client(*recorded, tmp_path / "client")


# --- within a session: what would open codes, labels or messages ----------------------------------


def test_codes_by_another_seed_of_pi_under_the_masks_of_the_first(xclp, before):
    """The difference of both messages would be the difference of the codes."""
    for changes in ({}, {"seed": 8}):
        client = before(xclp, "send_own")
        client.accepts()
        points = next(call for call in client.calls if call.step == "send_points")
        asked = client.later(1, points) | client.terms(**changes)
        if changes:
            assert "other terms than those of the session" in client.refuses(**asked)
        else:
            client.accepts(**asked)  # the same points under the same masks


def test_another_setup_within_a_session(xclp, before):
    for name, value in (("num_classes", 11), ("capacity", 99), ("max_labels", 1)):
        client = before(xclp, "send_own")
        census = json.loads(client.request["content.setup.census"])
        if name in census:
            name, value = "census", json.dumps(census | {name: value})
        changes = {f"content__setup__{name}": value}
        assert client.refuses(**changes) == "StepRefused the setup has changed within a session"


def test_keys_agreed_on_twice(xclp, before):
    """The second endpoint would have the keys of the first, and number its messages from 0: nonces twice."""
    for step in ("agree", "join", "give_group_secret"):
        client = before(xclp, "send_own")
        roster = parsed_call_message(xclp["give_group_secret"][1]["content.message.message"]).frames
        again = (1, "setup", {}, step, [])
        assert "is not one of this client's" in client.refuses(
            **client.letter(again, frames=roster)
        )


def changed(step, change):
    """A change of the calls of a step in a letter."""
    return lambda call: call._replace(**change(call)) if call.step == step else call


def sizes(change):
    return lambda call: {"plan": {**call.plan, "sizes": change(dict(call.plan["sizes"]))}}


CALLS = {
    " and 9: no pair": ("send_shares", lambda call: {"arguments": [9]}),
    "1 points of a client that has": ("send_points", sizes(lambda own: own | {0: 1})),
    "gives rows to the server": ("send_points", sizes(lambda own: own | {-1: 1})),
    "'largest' is not to be used now": ("send_points", lambda call: {"role": "largest"}),
    "is not one of this client's": ("send_points", lambda call: {"step": "_send_block"}),
}


@pytest.mark.parametrize("reason", CALLS)
def test_calls_that_following_the_protocol_does_not_make(xclp, before, reason):
    """Masks of pairs of points that repeat, other objects and other methods."""
    client = before(xclp, "send_own")
    assert reason in client.refuses(**client.letter(replaced=changed(*CALLS[reason])))


def test_a_letter_after_another_that_failed(xclp, before):
    """Errors would tell which of many messages fit the client's labels."""
    client = before(xclp, "send_own")
    assert "ProtocolError" in client.refuses(**client.letter((90, "codes", {}, "guess", [])))
    assert client.refuses().startswith("StateLost")
    assert client.states() == []


def test_two_continuations_of_one_session(xclp, before):
    """Two survivor sets, two letters under one nonce: the second is not answered, whatever its number."""
    client = before(xclp, "send_own")
    client.accepts()
    start = client.number - 1
    other = client.letter((90, "own", {}, "send_own", []))
    assert "sent again with other content" in client.refuses(**other)
    assert "is older" in client.refuses(step__number=start, step__after=0, **other)
    later = client.later(1, after=start)
    assert client.refuses(**later).startswith("StateLost")
    client.accepts(**client.later(1))  # the session goes on
    assert client.refuses(**client.later(2)).startswith("StateLost")


def test_a_session_that_another_step_has_overtaken(xclp, before):
    """The server gives a session up, begins another, and comes back to the first: its bytes are gone."""
    client = before(xclp, "send_own")
    client.accepts()
    join = xclp["join"][1]["content.message.message"]
    begun = {"step__name": "join", "content__message__message": join}
    client.accepts(**{**client.later(1, after=0), **begun})
    assert client.states() == [client.number + 1]
    assert client.refuses(**client.later(2)).startswith("StateLost")


def test_a_letter_after_the_last_one(xclp, before):
    client = before(xclp, "send_own")
    client.accepts()
    client.accepts(**client.later(1), step__name="end")
    own = state_of(client.folder)
    assert own["seed"] == own["past"] == b""
    again = client.later(2, after=client.number + 1)
    assert "without a session" in client.refuses(**again)
    assert "ProtocolError" in client.refuses(**again | client.terms(round=0))


# --- FedCT: noise, and sums over others -----------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 19, 21, 0])
def test_less_noise_than_the_settings_say(fedct, before, rows):
    client = before(fedct, "turn")
    assert f"noise for {rows} labels, and not for 20" in client.refuses(content__message__rows=rows)
    client.accepts()


def test_votes_packed_for_other_clients_than_the_sessions(fedct, before):
    """Digits to another base than the others' would come apart in the sum."""
    finished = (1, "setup", {}, "finished", [])
    for clients in ([0, 1, 2], [*range(15)], [0, 1], [0, 1, 1, 2], [0]):
        client = before(fedct, "give_group_secret")
        client.accepts()
        votes = (2, "votes", {"clients": clients, "is_resilient": False}, "upload", [])
        made = "no message" if clients == [0, 1, 2] else "a sum"
        assert made in client.refuses(**client.later(1, finished, votes))


# --- any request ----------------------------------------------------------------------------------

NESTED = "[" * 100_000
REQUESTS = {
    "a run outside": {"step__run": "../../x"},
    "a hidden run": {"step__run": ".secret"},
    "a negative round": {"step__round": -1},
    "a number for a text": {"step__run": 7},
    "a text for a number": {"step__number": "1"},
    "a later state": {"step__after": 9},
    "another client": {"step__client": 1},
    "another run": {"step__run": "0123456789abcdef-x"},
    "another method": {"content__setup__method": "fedavg"},
    "a nested config": {"content__setup__config": NESTED},
    "a cohort of one": {"step__cohort": 1},
    "classes without end": {"content__setup__num_classes": 10**9},
    "clients without end": {"content__setup__num_clients": 10**9},
    "a census that is none": {"content__setup__census": "x"},
    "a capacity below 0": {"content__setup__census": '{"capacity":-1,"max_labels":0,"sums":null}'},
    "another version": {"content__setup__jaxfed": "1\n2"},
    "bytes for a text": {"content__message__terms": b"\xff"},
    "nested terms": {"content__message__terms": NESTED},
    "terms without numbers": {"content__message__terms": '{"address":NaN,"seed":1,"round":1}'},
    "a letter cut short": {"content__message__message": bytes(7)},
    "an array for a letter": {"content__message__message": np.full(3, np.nan)},
    "one entry more": {"content__message__more": 1},
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_that_no_server_sends_changes_nothing(xclp, before, case):
    client = before(xclp, "join")
    there = {file: file.read_bytes() for file in client.folder.rglob("*") if file.is_file()}
    reason = str(failure_of(client.reply(**REQUESTS[case])))
    assert "\n" not in reason
    assert len(reason) < 300
    assert "MemoryError" not in reason
    assert str(client.folder) not in reason
    after = {file: file.read_bytes() for file in client.folder.rglob("*") if file.is_file()}
    assert after == there
    assert sorted(each.name for each in client.folder.parent.iterdir()) == ["client"]


def test_a_config_with_noise_that_clients_of_a_network_do_not_add(xclp, before):
    client = before(xclp, "join")
    text = json.loads(client.request["content.setup.config"])
    text["xclp"]["bit_epsilon"] = 1.0
    text = json.dumps(text)
    run = f"{setup.fingerprint(text)}-x"
    registration = {**xclp["registration"][1], "content.setup.config": text, "step.run": run}
    assert failure_of(client_run.perform(registration, folder=client.folder, kept={})) is None
    assert client.refuses(content__setup__config=text, step__run=run).startswith(
        "UsageError xclp.bit_epsilon=1.0: does not run on a network"
    )


def test_runs_and_states_without_end(xclp, before, monkeypatch):
    """Runs that were begun and states that no request lets go, also of a process that was killed."""
    monkeypatch.setattr(client_step, "_STATES_KEPT", 3)
    client = before(xclp, "join")
    base = client.request["step.run"].partition("-")[0]
    assert "malformed" in client.refuses(step__run=f"{base}-/../../x")
    killed = client.folder / "state" / "killed"
    killed.mkdir(parents=True)
    os.utime(killed, (1, 1))
    registration = xclp["registration"][1]
    for number in range(10):
        begun = {**registration, "step.run": f"{base}-{number}"}
        assert failure_of(client_run.perform(begun, folder=client.folder, kept={})) is None
        client.accepts(step__run=f"{base}-{number}")
    for number in range(2, 7):
        client.accepts(step__run=f"{base}-9", step__number=number)
    folders = [each.name for each in (client.folder / "state").iterdir() if each.is_dir()]
    assert len(folders) == 8
    assert "killed" not in folders
    assert len(client.states()) == 8  # a state of a session serves the next step alone
