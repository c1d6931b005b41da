"""Every safeguard of sums among neighbors counts: removed, a check fails.

(what is removed, how, the check that must fail then). A check raises nothing when all is well.
"""

from collections import Counter

import numpy as np
import pytest
from removed_safeguards import is_needed
from row_sums_parties import matrices

from jaxfed.errors import ProtocolError
from jaxfed.secure import cross_steps
from jaxfed.secure.primitives import shamir
from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.primitives.prg import Keystream
from jaxfed.secure.row_sums import (
    double_masks,
    mask_streams,
    masked,
    server_sums,
)
from jaxfed.secure.session import setup
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.neighborhoods import Neighborhood, Promise, neighborhood
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.party_endpoint import PartyEndpoint
from jaxfed.secure.session.phases import InProcess

WEAK = Promise(0.0, 0.25, 4, 4)
NUMBER = 16
K, T = neighborhood(NUMBER, 0, WEAK)
VALUES = np.arange(6, dtype=np.uint64).reshape(3, 2)


def parties_of(session):
    """Clients of one sum of `VALUES` each, their server, and its end of the session."""
    end, graph = session.endpoints[SERVER], session.graph
    own = {j: server_sums._rows([j], len(VALUES)) for j in session.clients}
    clients = {
        j: double_masks.Client(session.endpoints[j], VALUES, own[j], promise=WEAK) for j in own
    }
    rows = server_sums._rows(list(graph.neighbors), len(VALUES))
    return clients, double_masks.Server(end, rows, VALUES.shape[1], graph=graph), end


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


def streams(session, number):
    """Times that each seed was expanded in a round, by all parties together."""
    seeds = Counter()

    def counted(seed, **options):
        seeds[seed] += 1
        return Keystream(seed, **options)

    clients, server, _ = parties_of(session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mask_streams, "Keystream", counted)
        double_masks.run(InProcess(clients), server, first_round=number)
    return seeds


def check_streams_of_rounds():
    """A stream for each edge and each client, expanded at its two ends; none comes again."""
    session = sparse_session()
    rounds = [streams(session, number) for number in (0, 1)]
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


def check_round_comes_once():
    session = sparse_session()
    clients, _, end = parties_of(session)
    for _ in range(2):
        end.send(
            0, "start", double_masks.sparse_start_message(0, NUMBER, T, session.graph.neighbors[0])
        )
    clients[0].announce()
    refuses("was used before", clients[0].announce)


def check_own_seed_hides():
    """With all of c_1's and its pair masks, its upload is not open: G(b_1) is left."""
    session = sparse_session()
    heard = []
    end = session.endpoints[SERVER]
    receive = end.receive
    end.receive = lambda sender, kind: heard.append((sender, receive(sender, kind))) or heard[-1][1]
    clients, _, _ = up_to_uploads(session)
    upload = next(message for sender, message in heard if sender == 1 and len(message) == 48)
    left = np.frombuffer(upload, "<u8").reshape(VALUES.shape).copy()
    masks = mask_streams.pair_masks(1, {j: clients[1]._pair_seeds[j] for j in clients[1]._held})
    mask_streams.add_masks(left, mask_streams.removed(masks))
    assert not np.any(left == VALUES)


def no_own_seed(monkeypatch):
    add = double_masks.add_masks

    def without(elements, masks, **place):
        if place or elements.shape != VALUES.shape:
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
        options = {"resilient": True, "mask_partners": K, "promise": WEAK}
        sums = cross_steps.sums_of_rows(session, dict(enumerate(values)), rows, **options)
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


def check_strangers_among_survivors():
    check_survivors(lambda partners: [*partners, next(iter({*range(1, NUMBER)} - {*partners}))])


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
    values = dict.fromkeys(range(30), VALUES)
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
    values = dict.fromkeys(range(NUMBER), VALUES)
    assert server_sums.ring_sums(session, values, is_resilient=True) is None
    assert not any(route.kind.startswith("survivors") for route in session.channel.volumes)


def nobody_counts_neighbors(monkeypatch):
    monkeypatch.setattr(double_masks.Server, "_check_neighborhoods", lambda *_: None)
    monkeypatch.setattr(double_masks.Client, "_check_among", lambda *_, **__: None)


# --- keys of a sparse session ---------------------------------------------------------------------


def check_keys_of_pairs():
    """Parties to whom the server showed different keys of one of them share none."""
    session = sparse_session()
    ends, neighbors = session.endpoints, session.graph.neighbors
    one, other = 0, neighbors[0][0]
    assert ends[one].pair_seed(other, "x") == ends[other].pair_seed(one, "x")
    shared = {one: b"s" * 32, SERVER: b"t" * 32}
    roster = {SERVER: b"k" * 32, one: b"o" * 32, other: b"p" * 32}
    seeds = set()
    for server_key in (b"k" * 32, b"l" * 32):
        shown = {**roster, SERVER: server_key}
        rosters = setup._pair_rosters(shown, other)
        end = PartyEndpoint(other, session.channel, b"n" * 16, b"", shared, rosters)
        seeds.add(end.pair_seed(one, "x"))
    assert len(seeds) == 2


def no_rosters_of_pairs(monkeypatch):
    monkeypatch.setattr(setup, "_pair_rosters", lambda *_: None)


SAFEGUARDS = {
    "threshold": (any_neighborhood, check_low_threshold),
    "number of neighbors": (any_neighborhood, check_few_neighbors),
    "masks of one round": (mask_keys_are_kept, check_streams_of_rounds),
    "a round comes once": (no_label_is_claimed, check_round_comes_once),
    "own seed": (no_own_seed, check_own_seed_hides),
    "masks of owners": (no_owner_masks, check_rows_of_one_that_left),
    "one secret of each": (shares_of_the_other_secret, check_one_secret_of_each),
    "one list of survivors": (no_label_is_claimed, check_one_list_of_survivors),
    "survivors are t": (no_list_is_checked, check_more_are_gone_than_may_leave),
    "survivors are partners": (no_list_is_checked, check_strangers_among_survivors),
    "partners are t": (no_list_is_checked, check_few_partners),
    "survivors are connected": (nobody_looks_for_cuts, check_survivors_are_connected),
    "neighborhoods are kept": (nobody_counts_neighbors, check_neighborhoods_are_kept),
    "keys of pairs": (no_rosters_of_pairs, check_keys_of_pairs),
}


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_safeguard_is_needed(name, monkeypatch):
    remove, check = SAFEGUARDS[name]
    is_needed(remove, check, monkeypatch)
