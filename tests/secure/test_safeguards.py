"""Every safeguard of sessions, masks, pads and sums among neighbors counts: removed, a check fails.

`SAFEGUARDS` is the table: (how it is removed, the check that must fail then). A check raises nothing when all
is well.
"""

import itertools
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from row_sums_parties import matrices, parties, run
from session_parties import (
    Wire,
    established,
    in_another_roster,
    key_pair,
    reheaded,
)

from jaxfed.errors import ProtocolError
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import protocols
from jaxfed.secure.primitives import shamir
from jaxfed.secure.primitives.oblivious_transfer import CorrelationHash
from jaxfed.secure.primitives.prg import Keystream
from jaxfed.secure.primitives.ring import FixedPoint, unpack
from jaxfed.secure.row_sums import double_masks, masked, masked_rows, server_sums
from jaxfed.secure.session import framing, party_endpoint
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.framing import Link
from jaxfed.secure.session.key_agreement import derived_key
from jaxfed.secure.session.neighborhoods import Neighborhood, Promise, neighborhood
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.party_endpoint import PartyEndpoint
from jaxfed.secure.session.phases import InProcess

# === sessions =======================================================================================


def check_replay():
    wire, ends = established()
    ends[0].send(1, "kind", b"once")
    assert ends[1].receive(0, "kind") == b"once"
    wire.forged.append(wire.sent[-1])
    with pytest.raises(ProtocolError):
        ends[1].receive(0, "kind")


def check_order():
    wire, ends = established()
    for payload in (b"first", b"second"):
        ends[0].send(1, "kind", payload)
    wire.forged.append(wire.sent[-1])
    with pytest.raises(ProtocolError):
        ends[1].receive(0, "kind")


def no_sequence_numbers(monkeypatch):
    always_zero = property(lambda self: 0, lambda self, number: None)
    monkeypatch.setattr(Link, "_sequence", always_zero, raising=False)


def in_two_sessions(roster=b"roster"):
    """Clients 0 and 1 with the same key pairs in two sessions, as if keys had been kept."""
    keys = [key_pair(bytes([7 + client]) * 32) for client in (0, 1)]
    for session in (b"session number 1", b"session number 2"):
        wire = Wire()
        yield (
            wire,
            *(
                PartyEndpoint(
                    own, wire, session, roster, {1 - own: keys[own].agreed(keys[1 - own].public)}
                )
                for own in (0, 1)
            ),
        )


def check_sessions():
    (old, sender, _), (wire, _, receiver) = in_two_sessions()
    sender.send(1, "kind", b"of the first session")
    for message in (old.sent[-1], reheaded(old.sent[-1], session=b"session number 2")):
        wire.forged.append(message)
        with pytest.raises(ProtocolError):
            receiver.receive(0, "kind")


def check_masks_of_sessions():
    (_, one, _), (_, other, _) = in_two_sessions()
    for end in (one, other):
        end.join_group(b"g" * 32)
    assert one.pair_seed(1, "masks") != other.pair_seed(1, "masks")
    assert one.group_seed("masks") != other.group_seed("masks")


def no_session_in_keys(monkeypatch):
    def without(secret, session, purpose, *context):
        return derived_key(secret, bytes(16), purpose, *context)

    monkeypatch.setattr(party_endpoint, "derived_key", without)


def no_session_in_routes(monkeypatch):
    check = framing.check_route

    def without(header, session, sender, receiver, *, is_sealed):
        check(header, header.session, sender, receiver, is_sealed=is_sealed)

    monkeypatch.setattr(framing, "check_route", without)


def no_session_anywhere(monkeypatch):
    no_session_in_keys(monkeypatch)
    no_session_in_routes(monkeypatch)


def check_directions():
    """The same payload there and back must not meet the same keystream."""
    wire, ends = established()
    bodies = []
    for sender, receiver in ((1, 2), (2, 1)):
        ends[sender].send(receiver, "kind", b"the same payload")
        bodies.append(bytes(framing.parsed(wire.sent[-1]).body[:16]))
    assert bodies[0] != bodies[1]


def no_direction_in_keys(monkeypatch):
    packed = party_endpoint.struct.pack

    def sorted_route(layout, *route):
        return packed(layout, *sorted(route))

    monkeypatch.setattr(party_endpoint, "struct", SimpleNamespace(pack=sorted_route))


def check_headers():
    wire, ends = established()
    ends[0].send(1, "kind", b"payload")
    wire.forged.append(reheaded(wire.sent[-1], kind="sum"))
    with pytest.raises(ProtocolError):
        ends[1].receive(0, "sum")


def no_associated_data(monkeypatch):
    class Bare:
        def __init__(self, algorithm, mode):
            self._encryptor = Cipher(algorithm, mode).encryptor()
            self.update_into, self.finalize = (
                self._encryptor.update_into,
                self._encryptor.finalize,
            )

        tag = property(lambda self: self._encryptor.tag)

        def encryptor(self):
            return self

        def authenticate_additional_data(self, header):
            pass

    opening = framing.AESGCM

    def bare_opening(key):
        return SimpleNamespace(
            decrypt=lambda nonce, body, header: opening(key).decrypt(nonce, body, None)
        )

    monkeypatch.setattr(framing, "Cipher", Bare)
    monkeypatch.setattr(framing, "AESGCM", bare_opening)


def check_rosters():
    with pytest.raises(ProtocolError):
        in_another_roster(Wire())


def no_roster_hash(monkeypatch):
    nothing = property(lambda self: b"", lambda self, digest: None)
    monkeypatch.setattr(PartyEndpoint, "roster_hash", nothing, raising=False)


# === masks and pads =================================================================================


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
        patch.setattr(masked_rows, "Keystream", counted)
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


def one_seed_for_all(monkeypatch):
    def common(self, partner, label):
        return self.group_seed(label)

    monkeypatch.setattr(PartyEndpoint, "pair_seed", common)


def no_label_in_seeds(monkeypatch):
    seed = PartyEndpoint.pair_seed
    monkeypatch.setattr(
        PartyEndpoint, "pair_seed", lambda self, partner, _: seed(self, partner, "")
    )


# --- double masks --------------------------------------------------------------------------------


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


# === sums among neighbors ===========================================================================


WEAK = Promise(0.0, 0.25, 4, 4)
NUMBER = 16
K, T = neighborhood(NUMBER, 0, WEAK)
PART = np.arange(6, dtype=np.uint64).reshape(3, 2)


def parties_of(session):
    """Clients of one sum of `PART` each, their server, and its end of the session."""
    end, graph = session.endpoints[SERVER], session.graph
    own = {j: server_sums._rows([j], len(PART)) for j in session.clients}
    clients = {
        j: double_masks.Client(session.endpoints[j], PART, own[j], promise=WEAK) for j in own
    }
    rows = server_sums._rows(list(graph.neighbors), len(PART))
    return clients, double_masks.Server(end, rows, PART.shape[1], graph=graph), end


def sparse_session(presence=None):
    return Session(NUMBER, mask_partners=K, promise=WEAK, presence=presence)


def up_to_uploads(session):
    """A round in which all have uploaded: clients, server, its end."""
    clients, server, end = parties_of(session)
    play = InProcess(clients, session.presence)
    server.start(0, ())
    keyed = play("announce", play.clients, tell=server.invite, take=server.receive_key)
    present = list(play("share_secrets", keyed, tell=server.send_keys))
    server.check("share_secrets", present)
    present = play("collect_secrets", present, tell=server.send_partners)
    server.check("upload", list(play("upload", present, take=server.receive_upload)))
    return clients, server, end


def refuses(match, step):
    """A client's step must end in a `ProtocolError`."""
    with pytest.raises(ProtocolError, match=match):
        step()


def no_label_is_claimed(monkeypatch):
    monkeypatch.setattr(PartyEndpoint, "claim", lambda self, label: None)


def no_list_is_checked(monkeypatch):
    monkeypatch.setattr(double_masks.Client, "_check_among", lambda *_, **__: None)


# --- thresholds and neighbors ---------------------------------------------------------------------


def check_start(size, threshold, match):
    session = sparse_session()
    clients, _, end = parties_of(session)
    neighbors = session.graph.neighbors[0][:size]
    end.send(0, "start", double_masks.sparse_start_message(0, NUMBER, threshold, neighbors))
    refuses(match, clients[0].announce)


def check_low_threshold():
    check_start(K, T - 1, f"threshold {T - 1} of {K} neighbors")


def check_few_neighbors():
    check_start(K - 2, T, "mask_partners=.*: too few")


def any_neighborhood(monkeypatch):
    monkeypatch.setattr(double_masks, "neighborhood", lambda *_: Neighborhood(1, 1))


# --- masks ----------------------------------------------------------------------------------------


def streams_among_neighbors(session, number):
    """Times that each seed was expanded in a round, by all parties together."""
    seeds = Counter()

    def counted(seed, **options):
        seeds[seed] += 1
        return Keystream(seed, **options)

    clients, server, _ = parties_of(session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked_rows, "Keystream", counted)
        double_masks.run(InProcess(clients), server, first_round=number)
    return seeds


def check_streams_of_rounds():
    """A stream for each edge and each client, expanded at its two ends; none comes again."""
    session = sparse_session()
    rounds = [streams_among_neighbors(session, number) for number in (0, 1)]
    for seeds in rounds:
        assert set(seeds.values()) == {2}
        assert len(seeds) == NUMBER * K // 2 + NUMBER
    assert not rounds[0].keys() & rounds[1].keys()
    assert bytes(32) not in rounds[0]


def mask_keys_are_kept(monkeypatch):
    """Masks of pairs as in the round before: the same c_j, and no round in their seed."""
    agreed, kept = double_masks.agreed_seed, {}
    monkeypatch.setattr(double_masks, "agreed_seed", lambda own, public, _: agreed(own, public, 0))
    announce = double_masks.Client.announce

    def announcing(self):
        fresh, own = self._random_bytes, self._own
        draws = iter((kept.setdefault(own, fresh(32)), fresh(32)))
        self._random_bytes = lambda _: next(draws)
        announce(self)
        self._random_bytes = fresh

    monkeypatch.setattr(double_masks.Client, "announce", announcing)


def check_own_seed_hides():
    """With all of c_1's and its pair masks, its upload is not open: G(b_1) is left."""
    session = sparse_session()
    heard = []
    end = session.endpoints[SERVER]
    receive = end.receive
    end.receive = lambda sender, kind: heard.append((sender, receive(sender, kind))) or heard[-1][1]
    clients, _, _ = up_to_uploads(session)
    upload = next(message for sender, message in heard if sender == 1 and len(message) == 48)
    left = np.frombuffer(upload, "<u8").reshape(PART.shape).copy()
    masks = masked_rows.pair_masks(1, {j: clients[1]._pair_seeds[j] for j in clients[1]._held})
    masked_rows.add_masks(left, masked_rows.removed(masks))
    assert not np.any(left == PART)


def no_own_seed(monkeypatch):
    add = double_masks.add_masks

    def without(elements, masks, **place):
        if place or elements.shape != PART.shape:
            add(elements, masks, **place)

    monkeypatch.setattr(double_masks, "add_masks", without)


def check_rows_of_one_that_left():
    """The server does not read the sum on a dropped client's rows."""
    values, rows = matrices([1] * NUMBER, num_classes=2)
    presence = Presence()
    presence.lose_when(3, "send", "upload")
    session, servers = Session(NUMBER, presence=presence), []

    class Kept(double_masks.Server):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            servers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(double_masks, "Server", Kept)
        sums = cross_steps.sums_of_rows(session, dict(enumerate(values)), rows, resilient=True)
    assert len(sums) == NUMBER - 1
    (server,) = servers
    encoded = [FixedPoint(NUMBER).encode(v) for j, v in enumerate(values) if j != 3]
    bare = np.sum(encoded, axis=0, dtype=np.uint64)[rows[3]]
    assert not np.any(server._sums[server._layout[3]] == bare)


def no_owner_masks(monkeypatch):
    add, seed, owners = double_masks.add_masks, double_masks.Client._owner_seed, set()

    def noted(self, contributor, owner):
        owners.add(own := seed(self, contributor, owner))
        return own

    def without(elements, masks, **place):
        add(elements, [mask for mask in masks if mask[0] not in owners], **place)

    monkeypatch.setattr(double_masks.Client, "_owner_seed", noted)
    monkeypatch.setattr(double_masks, "add_masks", without)


# --- secrets --------------------------------------------------------------------------------------


def check_one_secret_of_each():
    """Of every client the server gets shares of b_j or of c_j; here 3 and 11 left before they uploaded."""
    presence = Presence()
    for client in (3, 11):
        presence.lose_when(client, "send", "upload")
    session = sparse_session(presence)
    clients, server, _ = up_to_uploads(session)
    play = InProcess(clients, session.presence)
    survivors = play("hear_survivors", server.summed, tell=server.ask)
    play("reveal", survivors, take=server.receive_shares)
    for client in range(NUMBER):
        of = Counter()
        for holder, shares in server._shares.items():
            if client in shares:
                assert len(shares[client]) == shamir.SHARE_BYTES
                of[clients[holder]._held[client].index(shares[client])] += 1
        assert list(of) == [1 if client in (3, 11) else 0]


def shares_of_the_other_secret(monkeypatch):
    """Client 0 answers with c_j of survivors, too."""
    reveal = double_masks.Client.reveal

    def revealing(self):
        if self._own == 0:
            self._held = {j: (pair[1], pair[0]) for j, pair in self._held.items()}
            reveal(self)
            self._held = {j: (pair[1], pair[0]) for j, pair in self._held.items()}
        else:
            reveal(self)

    monkeypatch.setattr(double_masks.Client, "reveal", revealing)


def check_one_list_of_survivors():
    """A second list, in which somebody has left, would get both secrets of it."""
    session = sparse_session()
    clients, server, end = up_to_uploads(session)
    partners = server._partners[0]
    for survivors in (partners, partners[1:]):
        end.send(0, "survivors/0", masked.start_message(0, survivors))
    clients[0].hear_survivors()
    refuses("was used before", clients[0].hear_survivors)


def check_survivors(survivors_of, match="too few"):
    session = sparse_session()
    clients, server, end = up_to_uploads(session)
    survivors = sorted(survivors_of(server._partners[0]))
    end.send(0, "survivors/0", masked.start_message(0, survivors))
    refuses(match, clients[0].hear_survivors)


def check_more_are_gone_than_may_leave():
    """A server that says that all but t - 1 partners have left, to open c_j of the others."""
    check_survivors(lambda partners: partners[: T - 1])


def check_few_partners():
    """Masks of fewer than t partners: they could all be in league with the server."""
    session = sparse_session()
    clients, server, end = parties_of(session)
    server.start(0, ())
    play = InProcess(clients)
    play("announce", play.clients, tell=server.invite, take=server.receive_key)
    play("share_secrets", play.clients, tell=server.send_keys)
    few = session.graph.neighbors[0][: T - 1]
    end.send(0, "partners/0", masked.start_message(0, few))
    refuses("partners .*: not of this round, or too few", clients[0].collect_secrets)


# --- the graph ------------------------------------------------------------------------------------


def ring_of(graph):
    """The clients in the order of the ring: two next to each other share the most neighbors."""
    ring = [0]
    while len(ring) < len(graph.neighbors):
        known = set(graph.neighbors[ring[-1]])
        near = sorted(known - set(ring))
        ring.append(max(near, key=lambda j: len(known & set(graph.neighbors[j]))))
    return ring


def check_survivors_are_connected():
    """Clients that are gone at two places cut the ring: no sum, and no share is asked for.

    Every survivor keeps t neighbors, so the sums of both parts could be opened.
    """
    presence = Presence()
    promise = Promise(0.0, 0.2, 1, 1)
    size = neighborhood(30, 0, promise).size
    session = Session(30, mask_partners=size, promise=promise, presence=presence)
    ring, half = ring_of(session.graph), size // 2
    for client in (*ring[2 : 2 + half], *ring[16 : 16 + half]):
        presence.lose_when(client, "send", "upload")
    values = dict.fromkeys(range(30), PART)
    assert server_sums.ring_sums(session, values, is_resilient=True) is None
    assert not any(route.kind.startswith("survivors") for route in session.channel.volumes)


def nobody_looks_for_cuts(monkeypatch):
    monkeypatch.setattr(double_masks, "is_connected", lambda *_: True)


def check_neighborhoods_are_kept():
    """No share is asked for where a survivor has fewer than t neighbors left."""
    presence = Presence()
    session = sparse_session(presence)
    for client in session.graph.neighbors[5][T - 1 :]:
        presence.lose_when(client, "send", "upload")
    values = dict.fromkeys(range(NUMBER), PART)
    assert server_sums.ring_sums(session, values, is_resilient=True) is None
    assert not any(route.kind.startswith("survivors") for route in session.channel.volumes)


def nobody_counts_neighbors(monkeypatch):
    monkeypatch.setattr(double_masks.Server, "_check_neighborhoods", lambda *_: None)
    monkeypatch.setattr(double_masks.Client, "_check_among", lambda *_, **__: None)


SAFEGUARDS = {
    # sessions
    "sequence numbers against replay": (no_sequence_numbers, check_replay),
    "sequence numbers against reordering": (no_sequence_numbers, check_order),
    "session in keys and headers": (no_session_anywhere, check_sessions),
    "session in the keys of masks": (no_session_in_keys, check_masks_of_sessions),
    "direction in keys": (no_direction_in_keys, check_directions),
    "header as associated data": (no_associated_data, check_headers),
    "roster's hash in keys": (no_roster_hash, check_rosters),
    # masks and pads
    "block number in the tweak": (no_block_number, check_blocks_of_transfers),
    "a seed for every pair, distances": (one_seed_for_all_pairs, check_shares_of_pairs),
    "a seed for every pair, streams": (one_seed_for_all, check_masked_streams),
    "label in seeds, streams": (no_label_in_seeds, check_masked_streams),
    "own seeds, zero": (zero_own_seeds, check_resilient_streams),
    "own seeds of every round": (kept_own_seeds, check_secrets_of_rounds),
    "mask keys of every client": (constant_mask_keys, check_secrets_of_rounds),
    "mask keys of every client, streams": (constant_mask_keys, check_resilient_streams),
    "mask keys of every round": (kept_mask_keys, check_secrets_of_rounds),
    "round in owners' seeds": (no_round_in_owner_seeds, check_resilient_streams),
    "direction in owners' seeds": (no_direction_in_owner_seeds, check_resilient_streams),
    # sums among neighbors
    "threshold": (any_neighborhood, check_low_threshold),
    "number of neighbors": (any_neighborhood, check_few_neighbors),
    "masks of one round": (mask_keys_are_kept, check_streams_of_rounds),
    "own seed": (no_own_seed, check_own_seed_hides),
    "masks of owners": (no_owner_masks, check_rows_of_one_that_left),
    "one secret of each": (shares_of_the_other_secret, check_one_secret_of_each),
    "one list of survivors": (no_label_is_claimed, check_one_list_of_survivors),
    "survivors are t": (no_list_is_checked, check_more_are_gone_than_may_leave),
    "partners are t": (no_list_is_checked, check_few_partners),
    "survivors are connected": (nobody_looks_for_cuts, check_survivors_are_connected),
    "neighborhoods are kept": (nobody_counts_neighbors, check_neighborhoods_are_kept),
}


@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_every_safeguard_is_needed(safeguard, monkeypatch):
    """The check passes with the safeguard, and fails once it is taken away."""
    remove, check = SAFEGUARDS[safeguard]
    check()
    remove(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()


@pytest.mark.parametrize("remove", [no_session_in_keys, no_session_in_routes])
def test_either_safeguard_of_sessions_suffices(remove, monkeypatch):
    """Keys that differ, and numbers in headers that are compared: each keeps sessions apart."""
    remove(monkeypatch)
    check_sessions()
