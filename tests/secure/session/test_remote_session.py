"""Letters that a client refuses, and what a session does with clients that have left."""

import numpy as np
import pytest
from replayed_parties import Replayed

from jaxfed.errors import DroppedOut, ProtocolError
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import masked, protocols
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session import remote_calls
from jaxfed.secure.session.neighborhoods import PROMISE
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.remote_calls import Call, CallMessage

RNG = np.random.default_rng(0)
SIZES = (3, 1, 0, 2)
CODES = {j: RNG.integers(0, 2**32, (size, 1), dtype=np.uint32) for j, size in enumerate(SIZES)}
ROWS = {0: slice(0, 3), 1: slice(3, 4), 2: slice(4, 4), 3: slice(4, 6)}
VALUES = {j: RNG.normal(size=(6, 2)) for j in ROWS}
PLAN = {"rows": ROWS, "is_resilient": False, "signed": False}


def letter(role, plan, step):
    return CallMessage([Call(99, role, plan, step, [])], []).to_bytes()


def test_malformed_letters_are_refused():
    party = Replayed(len(SIZES)).remotes[0].party()
    for letter in (
        b"",
        b"\0" * 7,
        remote_calls.packed([b"[]"]) + b"\0",
        remote_calls.packed([b"{"]),
        remote_calls.packed([b"[[1]]"]),
        remote_calls.packed([b'[[1,"setup",{"slice":[1]},"join",[]]]']),
        CallMessage([Call(1, "setup", {}, "__init__", [])], []).to_bytes(),
        CallMessage(
            [Call(1, "codes", {"sizes": {0: 3}, "run": 0}, "send_points", [])], []
        ).to_bytes(),
        CallMessage([Call(1, "unknown", {}, "join", [])], []).to_bytes(),
        CallMessage([], [b"no frame"]).to_bytes(),
    ):
        with pytest.raises(ProtocolError):
            party.play(letter)


def test_an_object_is_used_once_and_never_sums_for_the_server():
    """Nor is it made from another plan than the client's role has."""
    session = Replayed(len(SIZES))
    cross_steps.nearest_others(session, CODES, 3, protocols.masked)
    cross_steps.sums_of_rows(session, VALUES, ROWS)
    session.results("finish")
    [own, codes, sums], party = session.roles, session.remotes[0].party()
    plan = {"sizes": dict(enumerate(SIZES)), "run": 0}
    for role, given in ((own, {}), (codes, plan), (sums, PLAN)):
        with pytest.raises(ProtocolError, match="not to be used now"):
            party.play(letter(role, given, "upload"))
    with pytest.raises(ProtocolError, match="a second setup"):
        party.play(letter("setup", {}, "join"))

    session = Replayed(len(SIZES))
    session.flush("finished")
    session.parties(server_sums.row_client, VALUES, [0], **PLAN)
    [sums], remote = session.roles, session.remotes[0]
    for plan, about in (
        (PLAN | {"rows": {-1: slice(0, 6), **ROWS}}, "gives rows to the server"),
        (PLAN | {"promise": [0, 0, 0, 0]}, "a plan of"),
        ({"rows": ROWS}, "a plan of"),
    ):
        with pytest.raises(ProtocolError, match=about):
            remote.party().play(letter(sums, plan, "upload"))


IN_ALL = {"clients": [0, 1, 2], "is_resilient": True}
AMONG = {"clients": 3, "is_resilient": True, "promise": list(PROMISE)}
OTHER_SUMS = {
    "single masks": (IN_ALL | {"is_resilient": False}, "by another protocol"),
    "of fewer": (IN_ALL | {"clients": [0, 1]}, "of others than the session's"),
    "of more": (IN_ALL | {"clients": [0, 1, 2, 3]}, "of others than the session's"),
    "of itself": (IN_ALL | {"clients": [0]}, "of this client alone"),
    "neighbors, single masks": (AMONG | {"is_resilient": False}, "with another promise"),
    "neighbors, a weaker promise": (AMONG | {"promise": [0, 0.3, 40, 30]}, "with another promise"),
    "neighbors, fewer": (AMONG | {"clients": 2}, "of fewer clients"),
    "neighbors, no number": (AMONG | {"clients": True}, "of fewer clients"),
}


@pytest.mark.parametrize("what", OTHER_SUMS)
def test_a_client_takes_part_in_the_sum_of_its_settings_alone(what):
    """Whatever the server plans: who sums, by which protocol, with which promise."""
    plan, about = OTHER_SUMS[what]
    roles = server_sums.roles("sum", server_sums.client, np.zeros((2, 1)), is_resilient=True)
    role = roles["sum among neighbors" if "promise" in plan else "sum"]
    assert plan.keys() == role.plan
    with pytest.raises(ProtocolError, match=about):
        role.constructor(Session(3).endpoints[0], np.zeros((2, 1)), random_bytes=None, **plan)


def test_a_client_alone_in_its_session_takes_part_in_no_sum():
    [role, _] = server_sums.roles("sum", server_sums.client, None, is_resilient=True).values()
    with pytest.raises(ProtocolError, match="of this client alone"):
        role.constructor(Session(1).endpoints[0], None, clients=[0], is_resilient=True)


def test_a_client_that_has_left_sends_nothing_and_is_asked_nothing():
    def fault(client, number, frames):
        return None if (client, number) == (1, 1) else frames

    session = Replayed(len(SIZES), fault)
    sizes = {j: len(own) for j, own in CODES.items()}
    parties = session.parties(masked.Client, CODES, list(CODES), sizes=sizes, run=0)
    session.exchange("join")
    stream = parties.stream("send_points", {j: [()] for j in sizes})
    for client in sizes:
        messages = stream(client)
        if client == 1:
            with pytest.raises(DroppedOut):
                next(messages)
        else:
            next(messages)
    session.later_all([0, 1])
    assert session.flush("more") == [0]
    told = []
    assert parties("send_points", [0, 1], tell=told.append, quiet=True) == {0: None}
    assert told == [0]
