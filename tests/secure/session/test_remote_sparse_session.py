"""Sums among neighbors over letters: those of one process, whoever fails in whichever exchange."""

import numpy as np
import pytest
from replayed_parties import Replayed, seed_of

from jaxfed.errors import ProtocolError
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session import remote_calls
from jaxfed.secure.session.neighborhoods import neighborhood
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.remote_calls import Call, CallMessage
from jaxfed.secure.session.replayed_party import ReplayedParty

NUMBER = 16
SIZE = neighborhood(NUMBER).size
VALUES = {j: np.random.default_rng(j).integers(0, 9, (3, 2)) for j in range(NUMBER)}
EXCHANGES = ["join", "announce", "share_secrets", "upload", "reveal"]


def summed(session):
    return server_sums.server_sums(session, VALUES, is_resilient=True)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        pytest.param(name, answer, marks=pytest.mark.slow if (number + place) % 2 else ())
        for number, name in enumerate(EXCHANGES)
        for place, answer in enumerate((None, [b"garbage"]))
    ],
)
def test_sum_is_over_those_whose_upload_arrived(name, answer):
    def fault(client, number, frames):
        return answer if client in (3, 9) and EXCHANGES[number] == name else frames

    session = Replayed(NUMBER, fault, mask_partners=SIZE)
    total = summed(session)
    counted = set(session.contributors)
    assert counted == set(VALUES) - (set() if name == "reveal" else {3, 9})
    np.testing.assert_array_equal(total, sum(VALUES[j] for j in counted))
    assert session.presence.gone == {3, 9}
    assert session.names == EXCHANGES


def test_messages_are_those_of_one_process():
    remote, here = (made(NUMBER, mask_partners=SIZE) for made in (Replayed, Session))
    np.testing.assert_array_equal(summed(remote), summed(here))
    assert remote.communication().metrics() == here.communication().metrics()


def joined(**options):
    """A client that has joined, and its server's next letter with one step of setup."""
    (letter,) = Replayed(NUMBER, mask_partners=SIZE).remotes[0].letters
    party = ReplayedParty(0, seed_of(0), {}, **options)
    party.play(letter)
    return party


def step(name):
    return CallMessage([Call(1, remote_calls.SETUP, {}, name, [])], []).to_bytes()


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
