"""Every safeguard of masks and pads counts: removed, a check through the ends of a session fails.

(what is removed, how, the check that must fail then). A check raises nothing when all is well.
"""

import itertools
import re
from collections import Counter

import numpy as np
import pytest
from removed_safeguards import is_needed
from row_sums_parties import matrices, parties, run
from session_parties import Wire, one_more_in_roster

from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import protocols
from jaxfed.secure.primitives.correlation_hash import CorrelationHash
from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.primitives.prg import Keystream
from jaxfed.secure.primitives.ring import unpack
from jaxfed.secure.row_sums import double_masks, mask_streams
from jaxfed.secure.session import framing, setup
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.key_agreement import KeyPair, derived_key
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.party_endpoint import PartyEndpoint
from jaxfed.secure.session.phases import InProcess
from jaxfed.secure.session.setup import ClientSetup, ServerSetup, agree


class Heard:
    """An end of a session that keeps what it receives: (sender, kind, payload)."""

    def __init__(self, end):
        self._end, self.messages = end, []

    def __getattr__(self, name):
        return getattr(self._end, name)

    def receive(self, sender, kind):
        payload = self._end.receive(sender, kind)
        self.messages.append((sender, kind, payload))
        return payload

    def payloads(self, kind):
        return [payload for _, heard, payload in self.messages if heard == kind]


def listening(session, address):
    """The session, one end of which keeps what it receives; and that end."""
    heard = session.endpoints[address] = Heard(session.endpoints[address])
    return session, heard


# --- distances -----------------------------------------------------------------------------------


def check_blocks_of_transfers():
    """Equal points in two blocks: tau of the one says nothing about tau of the other."""
    session, heard = listening(Session(2), 1)
    codes = {0: np.full((16, 2), 0x5A5A5A5A, np.uint32), 1: np.arange(6, dtype=np.uint32)}
    codes[1] = codes[1].reshape(3, 2)
    cross_steps.nearest_others(session, codes, 2, protocols.ot)
    (tau,) = heard.payloads("payload")
    blocks = np.frombuffer(tau, "<u2").reshape(3, 2, 64, 8)
    assert np.mean(blocks[:, 0] == blocks[:, 1]) < 0.01


def no_block_number(monkeypatch):
    hashed = CorrelationHash.__call__

    def without(self, rows, first_row, first_block, num_blocks):
        alike = hashed(self, rows, first_row, 0, 1)
        self._outputs.append(self._outputs[0].copy())  # the buffers that the next call will use
        del self._outputs[0]
        return np.repeat(alike, num_blocks, axis=0)

    monkeypatch.setattr(CorrelationHash, "__call__", without)


def check_shares_of_pairs():
    """A point of zeros has s = r: masks of two pairs that were alike would show in its shares."""
    session, heard = listening(Session(3), SERVER)
    codes = {0: np.zeros((8, 2), np.uint32)}
    codes |= {j: np.arange(16 * j, 16 * j + 16, dtype=np.uint32).reshape(8, 2) for j in (1, 2)}
    cross_steps.nearest_others(session, codes, 2, protocols.masked)
    first, second = (unpack(heard.payloads(f"shares/0/{j}")[0], 64, 7) for j in (1, 2))
    assert np.mean(first == second) < 0.2  # 1/128 by chance


def one_seed_for_all_pairs(monkeypatch):
    seed = PartyEndpoint.group_seed

    def without(self, label):
        return seed(self, re.sub(r"pairs/\d+/\d+", "pairs", label))

    monkeypatch.setattr(PartyEndpoint, "group_seed", without)


# --- sums of rows --------------------------------------------------------------------------------

VALUES, ROWS = matrices([4, 3, 5])


def streams(protocol, session, first_round):
    """How often each seed was expanded in a round, by all parties together."""
    seeds = Counter()

    def counted(seed, **options):
        seeds[seed] += 1
        return Keystream(seed, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mask_streams, "Keystream", counted)
        run(protocol, session, VALUES, ROWS, first_round=first_round)
    return seeds


def check_streams(protocol):
    """One stream a pair, direction, round and session: each is expanded at its two ends, and that is all."""
    session = Session(3)
    rounds = [streams(protocol, session, number) for number in (0, 1)]
    rounds.append(streams(protocol, Session(3), 0))
    for seeds in rounds:
        assert set(seeds.values()) == {2}
    assert len(set().union(*rounds)) == sum(map(len, rounds))
    assert bytes(32) not in set().union(*rounds)


def check_masked_streams():
    check_streams("restarting")


def check_resilient_streams():
    check_streams("resilient")


def check_uploads_are_masked():
    """Client 1 adds one pair's mask and subtracts the other's: they must not be the same."""
    session, heard = listening(Session(3), SERVER)
    run("restarting", session, VALUES, ROWS)
    (upload,) = (payload for j, _, payload in heard.messages if j == 1)
    others = np.concatenate([VALUES[1][ROWS[j]] for j in (0, 2)])
    words = np.frombuffer(upload, "<u8").reshape(others.shape)
    assert not np.any(words == FixedPoint(3).encode(others))


def check_uploads_of_two_runs():
    """The same contributions in two rounds of a session: no word of an upload comes again."""
    session, heard = listening(Session(3), SERVER)
    values = dict(enumerate(VALUES))
    for _ in range(2):
        cross_steps.sums_of_rows(session, values, ROWS)
    uploads = [p for _, kind, p in heard.messages if kind.startswith("upload")]
    for j in range(3):
        one, other = (np.frombuffer(uploads[j + 3 * number], "<u8") for number in (0, 1))
        assert not np.any(one == other)


def one_seed_for_all(monkeypatch):
    def common(self, partner, label):
        return self.group_seed(label)

    monkeypatch.setattr(PartyEndpoint, "pair_seed", common)


def no_label_in_seeds(monkeypatch):
    seed = PartyEndpoint.pair_seed
    monkeypatch.setattr(
        PartyEndpoint, "pair_seed", lambda self, partner, _: seed(self, partner, "")
    )


def check_rosters_of_seeds():
    """Who was shown different rosters shares no seed either."""
    wire = Wire()
    wire.change = one_more_in_roster
    server, clients = ServerSetup(wire), [ClientSetup(j, wire) for j in range(3)]
    for j, client in enumerate(clients):
        server.invite(j)
        client.join()
        server.accept(j)
    for j, client in enumerate(clients):
        server.send_roster(j)
        client.agree()
    ends = [client._endpoint for client in clients]
    assert ends[0].pair_seed(2, "x") == ends[2].pair_seed(0, "x")
    assert ends[0].pair_seed(1, "x") != ends[1].pair_seed(0, "x")


def no_roster_in_seeds(monkeypatch):
    def without(self, partner, label):
        return derived_key(self._shared[partner], self._session, "pair seed", label.encode())

    monkeypatch.setattr(PartyEndpoint, "pair_seed", without)


def check_keys_of_sessions():
    """Every party has another public key in every session."""
    rosters = []
    for _ in range(2):
        wire = Wire()
        agree([0, 1, 2], wire)
        frames = [framing.parsed(message) for message in wire.sent]
        rosters += [bytes(frame.body) for frame in frames if frame.header.kind == "roster"][:1]
    parsed = [setup.parsed_roster(roster).values() for roster in rosters]
    assert len({key for keys in parsed for key in keys}) == 2 * 4


def keys_are_kept(monkeypatch):
    kept = itertools.cycle([KeyPair() for _ in range(4)])
    monkeypatch.setattr(setup, "KeyPair", lambda source: next(kept))


# --- double masks --------------------------------------------------------------------------------


def check_late_uploads():
    """A dropped client's upload that comes late, on the rows of an owner that helps the server.

    With c_1 and the owner's stream all of its masks are off but G(b_1).
    """
    session = Session(3)
    clients, server = parties("resilient", session, VALUES, ROWS)
    server.start(0, range(3))
    for j in range(3):
        server.invite(j)
        clients[j].announce()
        server.receive_key(j)
    for j in range(3):
        server.send_keys(j)
        clients[j].share_secrets()
    for j in range(3):
        clients[j].collect_secrets()
        clients[j].upload()
    for j in (0, 2):
        server.receive_upload(j)
    for j in (0, 2):
        server.ask(j)
        clients[j].hear_survivors()
        clients[j].reveal()
        server.receive_shares(j)
    server.unmask()

    upload = session.endpoints[SERVER].receive(1, "upload/0")
    layout = server._layout
    left = np.zeros(layout.shape, np.uint64)
    layout.add_upload(left, upload, 1)
    left = left[layout[2]]
    keys = double_masks.key_pair(server._secret(1, False, set()))
    seeds = {j: double_masks.agreed_seed(keys, server._keys[j], 0) for j in (0, 2)}
    first = 3 * layout[2].start
    mask_streams.add_masks(
        left, mask_streams.removed(mask_streams.pair_masks(1, seeds)), first=first
    )
    mask_streams.add_masks(left, [(clients[2]._owner_seed(1, 2), -1)])
    bare = FixedPoint(3).encode(VALUES[1][ROWS[2]])
    for known in (bytes(32), clients[0]._self_seed, clients[2]._self_seed):
        tried = left.copy()
        mask_streams.add_masks(tried, [(known, -1)], first=first)
        assert not np.any(tried == bare)
    mask_streams.add_masks(left, [(clients[1]._self_seed, -1)], first=first)
    np.testing.assert_array_equal(left, bare)


def check_secrets_of_rounds():
    """b_j as the server puts them together and c_j G as it gets them: new ones for everybody, every round."""
    session, heard = listening(Session(3), SERVER)
    clients, server = parties("resilient", session, VALUES, ROWS)
    own = set()
    for number in range(2):
        double_masks.run(InProcess(clients), server, first_round=number)
        own |= {server._secret(j, j in server._survivors, set()) for j in range(3)}
    assert len(own) == 6
    assert len(set(heard.payloads("mask_key"))) == 6


def drawn(change):
    """Removes a safeguard by changing what a client draws: `change(client, label)` gives other bytes."""

    def remove(monkeypatch):
        announce, kept = double_masks.Client.announce, {}

        def announcing(self):
            fresh, number = self._random_bytes, itertools.count()

            def source(size):
                return change(kept, (self._own, next(number)), fresh(size))

            self._random_bytes = source
            announce(self)
            self._random_bytes = fresh

        monkeypatch.setattr(double_masks.Client, "announce", announcing)

    return remove


# What a client draws to announce itself: c_j, then b_j.
zero_own_seeds = drawn(lambda kept, which, fresh: bytes(32) if which[1] == 1 else fresh)
one_own_seed = drawn(lambda kept, which, fresh: b"b" * 32 if which[1] == 1 else fresh)
constant_mask_keys = drawn(lambda kept, which, fresh: b"c" * 32 if which[1] == 0 else fresh)
kept_own_seeds = drawn(
    lambda kept, which, fresh: kept.setdefault(which, fresh) if which[1] == 1 else fresh
)
kept_mask_keys = drawn(
    lambda kept, which, fresh: kept.setdefault(which, fresh) if which[1] == 0 else fresh
)


def owner_label(pattern, replacement):
    """Removes a part of the label of owners' seeds."""

    def remove(monkeypatch):
        seed = PartyEndpoint.pair_seed

        def without(self, partner, label):
            return seed(self, partner, re.sub(pattern, replacement, label))

        monkeypatch.setattr(PartyEndpoint, "pair_seed", without)

    return remove


no_round_in_owner_seeds = owner_label(r"^row sums/\d+/rows", "row sums/rows")
no_direction_in_owner_seeds = owner_label(r"rows of \d+ by \d+", "rows")

SAFEGUARDS = {
    "block number in the tweak": (no_block_number, check_blocks_of_transfers),
    "a seed for every pair, distances": (one_seed_for_all_pairs, check_shares_of_pairs),
    "a seed for every pair, sums": (one_seed_for_all, check_uploads_are_masked),
    "a seed for every pair, streams": (one_seed_for_all, check_masked_streams),
    "label in seeds, uploads": (no_label_in_seeds, check_uploads_of_two_runs),
    "label in seeds, streams": (no_label_in_seeds, check_masked_streams),
    "roster in seeds": (no_roster_in_seeds, check_rosters_of_seeds),
    "keys of one session": (keys_are_kept, check_keys_of_sessions),
    "own seeds, late uploads": (zero_own_seeds, check_late_uploads),
    "own seeds, zero": (zero_own_seeds, check_resilient_streams),
    "own seeds of every client": (one_own_seed, check_late_uploads),
    "own seeds of every round": (kept_own_seeds, check_secrets_of_rounds),
    "mask keys of every client": (constant_mask_keys, check_secrets_of_rounds),
    "mask keys of every client, streams": (constant_mask_keys, check_resilient_streams),
    "mask keys of every round": (kept_mask_keys, check_secrets_of_rounds),
    "round in owners' seeds": (no_round_in_owner_seeds, check_resilient_streams),
    "direction in owners' seeds": (no_direction_in_owner_seeds, check_resilient_streams),
}


@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_every_safeguard_is_needed(safeguard, monkeypatch):
    is_needed(*SAFEGUARDS[safeguard], monkeypatch)
