"""Sums among neighbors over letters: those of one process, whoever fails in whichever exchange."""

import os

import numpy as np
import pytest

from jaxfed.errors import ProtocolError
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session.neighborhoods import neighborhood
from jaxfed.secure.session.network import letters
from jaxfed.secure.session.network.letters import Call, Letter
from jaxfed.secure.session.network.remote_session import RemoteSession
from jaxfed.secure.session.network.replayed_party import ReplayedParty, Role
from jaxfed.secure.session.parties import Session

NUMBER, ROLE = 16, "numbers"
SIZE = neighborhood(NUMBER).size
VALUES = {j: np.random.default_rng(j).integers(0, 9, (3, 2)) for j in range(NUMBER)}
EXCHANGES = ["join", "announce", "share_secrets", "upload", "reveal"]


def roles_of(address):
    plan = frozenset({"clients", "is_resilient", "promise"})
    return {
        ROLE: Role(server_sums.client, lambda _: VALUES[address], server_sums.CLIENT_STEPS, plan)
    }


class Network:
    """Clients that keep 32 random bytes and the letters that they have answered; some fail once."""

    def __init__(self, failing=(), answer=None):
        self.seeds = {j: os.urandom(32) for j in VALUES}
        self.past, self.names = {j: [] for j in VALUES}, []
        self.failing, self.answer = dict(failing), answer

    def party(self, client):
        party = ReplayedParty(client, self.seeds[client], roles_of(client), may_be_sparse=True)
        for letter in self.past[client]:
            party.play(letter)
        return party

    def carry(self, name, sent):
        self.names.append(name)
        answers = {}
        for client, letter in sent.items():
            answers[client] = self.party(client).play(letter)
            self.past[client].append(letter)
            if self.failing.get(client) == name:
                answers[client] = self.answer
        return {client: own for client, own in answers.items() if own is not None}

    def session(self):
        roles = {server_sums.client: ROLE}
        return RemoteSession(NUMBER, self.carry, roles, mask_partners=SIZE)


def summed(session):
    return server_sums.server_sums(session, VALUES, is_resilient=True)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        pytest.param(name, answer, marks=pytest.mark.slow if (number + place) % 2 else ())
        for number, name in enumerate(EXCHANGES)
        for place, answer in enumerate((None, b"garbage"))
    ],
)
def test_sum_is_over_those_whose_upload_arrived(name, answer):
    network = Network({3: name, 9: name}, answer)
    session = network.session()
    total = summed(session)
    counted = set(session.contributors)
    assert counted == set(VALUES) - (set() if name == "reveal" else {3, 9})
    np.testing.assert_array_equal(total, sum(VALUES[j] for j in counted))
    assert session.presence.gone == {3, 9}
    assert network.names == EXCHANGES


def test_messages_are_those_of_one_process():
    remote, here = Network().session(), Session(NUMBER, mask_partners=SIZE)
    np.testing.assert_array_equal(summed(remote), summed(here))
    assert remote.communication().metrics() == here.communication().metrics()


def joined(**options):
    """A client that has joined, and its server's next letter with one step of setup."""
    network = Network()
    network.session()
    (letter,) = network.past[0]
    party = ReplayedParty(0, network.seeds[0], roles_of(0), **options)
    party.play(letter)
    return party


def step(name):
    return Letter([Call(1, letters.SETUP, {}, name, [])], []).to_bytes()


def test_a_client_whose_settings_have_no_partners_takes_part_in_no_sparse_session():
    with pytest.raises(ProtocolError, match="'agree_with_neighbors' of 'setup' is not one"):
        joined().play(step("agree_with_neighbors"))
    with pytest.raises(ProtocolError, match="no message from -1 where 'roster' was due"):
        joined(may_be_sparse=True).play(step("agree_with_neighbors"))


def test_a_sparse_setup_has_no_further_step():
    party = joined(may_be_sparse=True)
    with pytest.raises(ProtocolError, match="roster"):
        party.play(step("agree_with_neighbors"))
    for name in ("agree", "agree_with_neighbors", "finished"):
        with pytest.raises(ProtocolError, match="is not one of this client's"):
            party.play(step(name))
