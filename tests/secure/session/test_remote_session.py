"""Sessions over letters: the sums and distances of one process, from parties that are replayed."""

import os

import numpy as np
import pytest

from jaxfed.errors import ProtocolError
from jaxfed.federation.departures import DroppedOut
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import masked, matrix, protocols
from jaxfed.secure.row_sums.server_sums import row_client
from jaxfed.secure.session.network import letters
from jaxfed.secure.session.network.letters import Call, Letter
from jaxfed.secure.session.network.remote_session import RemoteSession
from jaxfed.secure.session.network.replayed_party import ReplayedParty, Role
from jaxfed.secure.session.parties import Session

RNG = np.random.default_rng(0)
SIZES = (3, 1, 0, 2)
CODES = {j: RNG.integers(0, 2**32, (size, 1), dtype=np.uint32) for j, size in enumerate(SIZES)}
NO_CODES = {j: np.zeros_like(own) for j, own in CODES.items()}
ROWS = {0: slice(0, 3), 1: slice(3, 4), 2: slice(4, 4), 3: slice(4, 6)}
VALUES = {j: RNG.normal(size=(6, 2)) for j in ROWS}
ROLES = {matrix.OwnDistances: "own", masked.Client: "codes", row_client: "sums"}
EXCHANGES = {"masked": 5, "resilient": 8}


class Client:
    """A client's process: its input, 32 random bytes, and the letters that it has answered."""

    def __init__(self, address):
        self.address, self.seed = address, os.urandom(32)
        self.letters, self.answers = [], []
        codes, plan = CODES[address], {"sizes", "run"}
        sums = {"announce", "share_secrets", "collect_secrets", "hear_survivors", "reveal"}
        self.roles = {
            "own": Role(matrix.OwnDistances, lambda _: codes, frozenset({"send_own"}), frozenset()),
            "codes": Role(
                masked.Client,
                lambda _: codes,
                frozenset({"send_points", "send_shares"}),
                frozenset(plan),
            ),
            "sums": Role(
                row_client,
                lambda _: VALUES[address],
                frozenset({"upload", "finish", "abandon", *sums}),
                frozenset({"rows", "is_resilient", "signed"}),
            ),
        }

    def party(self):
        party = ReplayedParty(self.address, self.seed, self.roles)
        for letter, sent in zip(self.letters, self.answers, strict=True):
            assert party.play(letter) == sent  # byte for byte, so nothing is sealed twice
        return party

    def answer(self, letter):
        sent = self.party().play(letter)
        self.letters.append(letter)
        self.answers.append(sent)
        return sent


class Network:
    def __init__(self, fault=lambda number, client, answer: answer):
        self.clients, self.names, self.fault = {}, [], fault

    def carry(self, name, sent):
        number = len(self.names)
        self.names.append(name)
        answers = {}
        for client, letter in sent.items():
            own = self.clients.setdefault(client, Client(client))
            answer = self.fault(number, client, own.answer(letter))
            if answer is not None:
                answers[client] = answer
        return answers

    def session(self):
        return RemoteSession(len(SIZES), self.carry, ROLES)

    def sums(self, session):
        there = session.flush("finish")
        return {j: self.clients[j].party().results["sums", "finish"] for j in there}


def both(session, codes, rows, values, **options):
    found = cross_steps.nearest_others(session, codes, 3, protocols.masked)
    return found, cross_steps.sums_of_rows(session, values, rows, num_classes=2, **options)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for client, own in expected.items():
        np.testing.assert_array_equal(found[client], own)


@pytest.mark.parametrize("kind", EXCHANGES)
def test_letters_give_the_numbers_of_one_process(kind):
    network, options = Network(), {"resilient": kind == "resilient"}
    session = network.session()
    near, _ = both(session, NO_CODES, ROWS, dict.fromkeys(ROWS), **options)
    there, sums = both(Session(len(SIZES)), CODES, ROWS, VALUES, **options)
    assert near.clients == there.clients
    np.testing.assert_array_equal(near.indices, there.indices)
    np.testing.assert_array_equal(near.distances, there.distances)
    assert_same(network.sums(session), sums)
    assert len(network.names) == EXCHANGES[kind]


@pytest.mark.sample(12)
@pytest.mark.parametrize("fault", ["missing", "garbage", "empty frame"])
@pytest.mark.parametrize("number", range(EXCHANGES["resilient"]))
@pytest.mark.parametrize("resilient", [False, True])
def test_a_client_that_fails_in_any_exchange_is_lost_alone(number, fault, resilient):
    bad = {"missing": None, "garbage": b"no frames", "empty frame": letters.packed([b""])}[fault]

    def answers(at, client, answer):
        return bad if (at, client) == (number, 1) else answer

    network = Network(answers)
    session = network.session()
    near, _ = both(session, NO_CODES, ROWS, dict.fromkeys(ROWS), resilient=resilient)
    sums = network.sums(session)
    is_reached = number < len(network.names)
    assert (1 in session.presence.gone) == is_reached
    assert near.clients == ([0, 2, 3] if number < 3 else [0, 1, 2, 3])
    for client, own in sums.items():
        # Until its upload has arrived a client has contributed nothing; `join` comes first.
        counts = not is_reached or number > (5 if resilient else 3)
        summed = sum(VALUES[j] for j in VALUES if j != 1 or counts)
        np.testing.assert_allclose(own, summed[ROWS[client]], atol=1e-9)


def test_malformed_letters_are_refused():
    party = Client(0).party()
    for letter in (
        b"",
        b"\0" * 7,
        letters.packed([b"[]"]) + b"\0",
        letters.packed([b"{"]),
        letters.packed([b"[[1]]"]),
        letters.packed([b'[[1,"setup",{"slice":[1]},"join",[]]]']),
        Letter([Call(1, "setup", {}, "__init__", [])], []).to_bytes(),
        Letter([Call(1, "codes", {"sizes": {0: 3}, "run": 0}, "send_points", [])], []).to_bytes(),
        Letter([Call(1, "unknown", {}, "join", [])], []).to_bytes(),
        Letter([], [b"no frame"]).to_bytes(),
    ):
        with pytest.raises(ProtocolError):
            party.play(letter)


def test_an_object_is_used_once_and_never_sums_for_the_server():
    network = Network()
    session = network.session()
    both(session, NO_CODES, ROWS, dict.fromkeys(ROWS))
    network.sums(session)
    party = network.clients[0].party()
    plan = {"rows": ROWS, "is_resilient": False, "signed": False}
    with pytest.raises(ProtocolError, match="not to be used now"):
        party.play(Letter([Call(99, "sums", plan, "upload", [])], []).to_bytes())
    with pytest.raises(ProtocolError, match="a second setup"):
        party.play(Letter([Call(99, "setup", {}, "join", [])], []).to_bytes())

    fresh = Network()
    session = fresh.session()
    session.flush("finished")
    plan["rows"] = {-1: slice(0, 6), **ROWS}
    with pytest.raises(ProtocolError, match="gives rows to the server"):
        fresh.clients[0].party().play(Letter([Call(9, "sums", plan, "upload", [])], []).to_bytes())


def test_a_client_that_has_left_sends_nothing_and_is_asked_nothing():
    network = Network(lambda at, client, answer: None if (at, client) == (1, 1) else answer)
    session = network.session()
    sizes = {j: len(own) for j, own in CODES.items()}
    parties = session.parties(masked.Client, NO_CODES, list(CODES), sizes=sizes, run=0)
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
