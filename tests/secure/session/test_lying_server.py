"""A server that tells every client another list of survivors, and has clients on its side.

Double masks assume truthful lists. Through the ends of a session: what a liar gets, and that clients which
sign their lists give it nothing (Bonawitz et al. 2017, consistency check).
"""

import numpy as np
import pytest
from recording_network import Network
from row_sums_parties import matrices, parties, uploads

from jaxfed.errors import ProtocolError
from jaxfed.secure.hamming import masked as hamming_masked
from jaxfed.secure.hamming import masked as masked_hamming
from jaxfed.secure.primitives import shamir
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums import double_masks, masked, masked_rows, signed_survivors
from jaxfed.secure.row_sums.masked_rows import ParticipatingRows
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session


class Lie:
    """A round up to its uploads, after which every honest client is told a list of its own.

    Args:
        lists: survivors as each honest client is told; all other clients collude.
        protocol: "resilient" or "signed".
        threshold: t.
    """

    def __init__(self, lists, num_clients, protocol, threshold):
        self.lists, self.threshold, self.protocol = lists, threshold, protocol
        self.everybody = range(num_clients)
        self.colluders = [j for j in self.everybody if j not in lists]
        self.values, self.rows = matrices([2] * num_clients)
        self.session = Session(num_clients)
        self.clients, self.server = parties(protocol, self.session, self.values, self.rows)
        self.uploads = {}
        self.set_up()

    def set_up(self):
        server, clients = self.server, self.clients
        server.start(0, self.everybody)
        server.threshold = self.threshold
        for j in self.everybody:
            server.invite(j)
            clients[j].announce()
            server.receive_key(j)
        for j in self.everybody:
            server.send_keys(j)
            clients[j].share_secrets()
        for j in self.everybody:
            clients[j].collect_secrets()
        for j in self.everybody:
            before = server._sums.copy()
            clients[j].upload()
            server.receive_upload(j)
            self.uploads[j] = server._sums - before

    def tell(self):
        """Every honest client hears its list, and signs it if it signs."""
        for j, survivors in self.lists.items():
            self.server._survivors = survivors
            self.server.ask(j)
            self.clients[j].hear_survivors()
            if self.protocol == "signed":
                self.server.receive_signature(j)

    def ask_for_shares(self, j):
        """With all signatures that there are of the list: of who was told the same, and of colluders."""
        told = self.lists[j]
        if self.protocol == "signed":
            own = self.server._signatures
            signatures = {k: own[k] for k, survivors in self.lists.items() if survivors == told}
            for k in self.colluders:
                signatures[k] = self.clients[k]._signer.signature(0, self.everybody, told)
            message = signed_survivors.packed_signatures(signatures)
            self.server._endpoint.send(j, "signatures/0", message)
        self.clients[j].reveal()
        self.server.receive_shares(j)

    def secret(self, client, which):
        """b_j or c_j out of what honest clients gave and colluders hold."""
        held = {
            k + 1: self.server._shares[k][client]
            for k, told in self.lists.items()
            if (client in told) == (which == "b")
        }
        for k in self.colluders:
            held[k + 1] = self.clients[k]._held[client][0 if which == "b" else 1]
        return shamir.reconstruct(held, self.threshold, 32)

    def opened(self, alive, dropped, owner):
        """The sum of `alive` on a colluding owner's rows, with b_j of these and c_j of `dropped`."""
        rows, total = self.server._layout[owner], np.zeros((2, 3), np.uint64)
        keys = {k: double_masks.key_pair(self.secret(k, "c")) for k in dropped}
        for j in alive:
            part = self.uploads[j][rows].copy()
            seeds = {k: self.clients[k]._pair_seeds[j] for k in self.colluders}
            for k in self.lists:
                if k not in alive or (j in keys and k != j):
                    one, other = (k, j) if k in keys else (j, k)
                    seeds[k] = double_masks.agreed_seed(keys[one], self.server._keys[other], 0)
            masks = [(self.secret(j, "b"), 1), *masked_rows.pair_masks(j, seeds)]
            masked_rows.add_masks(part, masked_rows.removed(masks), first=3 * rows.start)
            covered = [(self.clients[owner]._owner_seed(j, owner), 1)]
            masked_rows.add_masks(part, masked_rows.removed(covered))
            total += part
        return total

    def encoded(self, alive, owner):
        encoding = FixedPoint(len(self.everybody))
        parts = [encoding.encode(self.values[j][self.rows[owner]]) for j in alive]
        return np.sum(parts, axis=0, dtype=np.uint64)


# (lists, number of clients, t, whose sum is opened, with whose c_j, on whose rows). Of each list there are
# t survivors or more.
EVERYBODY = [0, 1, 2, 3, 4]
CASES = {
    # Client 4 colludes. Two clients are told that 0 has survived, two that it has not.
    "one client": (
        {0: EVERYBODY, 1: EVERYBODY, 2: [1, 2, 3, 4], 3: [1, 2, 3, 4]},
        (5, 3, [0], [0], 4),
    ),
    # 5 and 6 collude, t is more than two thirds: no client's secrets are both opened, but three clients
    # are dropped by enough lists, and what is left is a sum of two honest clients, not of three.
    "fewer than were promised": (
        {
            0: [0, 3, 4, 5, 6],
            1: [1, 3, 4, 5, 6],
            2: [2, 3, 4, 5, 6],
            3: [2, 3, 4, 5, 6],
            4: [0, 3, 4, 5, 6],
        },
        (7, 5, [3, 4], [0, 1, 2], 6),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_server_that_lies_and_colludes_reads_what_no_true_list_would_open(case):
    lists, (num_clients, threshold, alive, dropped, owner) = CASES[case]
    lie = Lie(lists, num_clients, "resilient", threshold)
    lie.tell()
    for j in lists:
        lie.ask_for_shares(j)
    opened = lie.opened(alive, dropped, owner)
    np.testing.assert_array_equal(opened, lie.encoded(alive, owner))


@pytest.mark.parametrize("case", CASES)
def test_the_owners_streams_are_left_on_rows_of_who_does_not_collude(case):
    """The liar with the same secrets, on the rows of an honest client: noise."""
    lists, (num_clients, threshold, alive, dropped, _) = CASES[case]
    lie = Lie(lists, num_clients, "resilient", threshold)
    lie.tell()
    for j in lists:
        lie.ask_for_shares(j)
    lie.clients[1]._owner_seed = lambda contributor, owner: bytes(32)  # what the liar lacks
    assert not np.any(lie.opened(alive, dropped, 1) == lie.encoded(alive, 1))


@pytest.mark.parametrize("case", CASES)
def test_clients_that_sign_give_a_lying_server_nothing(case):
    """Before any share is out, every honest client sees too few signatures of its own list."""
    lists, (num_clients, threshold, *_) = CASES[case]
    least = double_masks.least_threshold(num_clients, signed=True)
    lie = Lie(lists, num_clients, "signed", max(least, threshold))
    lie.tell()
    for j in lists:
        with pytest.raises(ProtocolError, match=r"\d signatures of the survivors"):
            lie.ask_for_shares(j)
    assert not lie.server._shares


@pytest.mark.parametrize(
    "lie_about", ["list", "participants", "as many participants", "round", "signer", "twice"]
)
def test_signatures_of_something_else_are_refused(lie_about):
    """t signatures, one of them of other lists or another round, by somebody else, or repeated."""
    survivors = [0, 1, 2]
    lie = Lie(dict.fromkeys([0, 1, 2], survivors), 4, "signed", 3)
    lie.tell()
    everybody = [0, 1, 2, 3]
    signatures, signer = dict(lie.server._signatures), lie.clients[1]._signer
    signatures[1] = {
        "list": signer.signature(0, everybody, [0, 1, 2, 3]),
        "participants": signer.signature(0, survivors, survivors),
        "as many participants": signer.signature(0, [*survivors, 4], survivors),
        "round": signer.signature(1, everybody, survivors),
        "signer": lie.clients[3]._signer.signature(0, everybody, survivors),
        "twice": signatures[0],
    }[lie_about]
    message = signed_survivors.packed_signatures(signatures)
    lie.server._endpoint.send(0, "signatures/0", message)
    with pytest.raises(ProtocolError, match="client 1 has not signed"):
        lie.clients[0].reveal()


@pytest.mark.parametrize("protocol", ["resilient", "signed"])
def test_a_server_cannot_tell_who_signs_that_nearly_all_have_left(protocol):
    """Without signatures it gets a round of two, which gives the one's contribution to the other."""
    values, rows = matrices([2] * 4)
    clients, server = parties(protocol, Session(4), values, rows)
    server.start(0, [1, 3])
    server.invite(1)
    if protocol == "resilient":
        clients[1].announce()
    else:
        with pytest.raises(ProtocolError, match="2 of 4 clients: too few to sign"):
            clients[1].announce()


@pytest.mark.parametrize("protocol", ["resilient", "signed"])
def test_a_server_cannot_put_in_keys_of_its_own_among_who_signs(protocol):
    """It would know the masks of the pair; what clients that sign tell each other shows it."""
    values, rows = matrices([2] * 4)
    clients, server = parties(protocol, Session(4), values, rows)
    server.start(0, range(4))
    for j, client in clients.items():
        server.invite(j)
        client.announce()
        server.receive_key(j)
    keys = dict(server._keys)
    for j, client in clients.items():
        server._keys = {**keys, 2: double_masks.key_pair(b"s" * 32).public} if j == 1 else keys
        server.send_keys(j)
        client.share_secrets()
    if protocol == "resilient":
        clients[1].collect_secrets()
    else:
        with pytest.raises(ProtocolError, match="a mask key in the name of 2"):
            clients[1].collect_secrets()


ALL = [0, 1, 2]
PLACES = {  # what each client is told: rows of each client by their ends, and the participants
    "other rows": [
        ({0: (0, 2), 1: (0, 0), 2: (2, 6)}, ALL),
        ({0: (0, 0), 1: (2, 4), 2: (2, 6)}, ALL),
        ({0: (0, 0), 1: (0, 4), 2: (4, 6)}, ALL),
    ],
    "other participants": [
        (rows := {0: (0, 1), 1: (1, 2), 2: (2, 6)}, [0, 2]),
        (rows, [1, 2]),
        (rows, ALL),
    ],
}


@pytest.mark.parametrize("case", PLACES)
def test_rows_that_all_upload_since_each_was_told_other_places(case):
    """All masks would cancel there, and the server would read the sum that is meant for a client."""
    values, network = matrices([2, 2, 2])[0], Network()
    layouts = {}
    for client, (ends, participants) in enumerate(PLACES[case]):
        rows = {owner: slice(*own) for owner, own in ends.items()}
        start = masked.start_message(0, participants)
        network.endpoint(SERVER).send(client, "start", start)
        masked.Client(network.endpoint(client), values[client], rows).upload()
        layouts[client] = ParticipatingRows(rows, participants, 3)
    places = np.full((3, 6, 3), 0, np.uint64)
    known = np.zeros((3, 6), bool)
    for client, upload in uploads(network).items():
        end = layouts[client].shape[0]
        known[client, :end] = True
        known[client, layouts[client][client]] = False
        places[client][known[client]] = upload.reshape(-1, 3)
    read = known.all(axis=0)
    assert read.any()
    encoding = FixedPoint(3)
    bare = [
        encoding.encode(layout.gathered(values[client]))[read[: layout.shape[0]]]
        for client, layout in layouts.items()
    ]
    assert not (places[:, read].sum(axis=0) == np.sum(bare, axis=0)).any()


def test_masks_of_pairs_of_clients_that_were_told_other_numbers_of_points(monkeypatch):
    """The masks of one row at one client would be those of another row at the other."""
    masks, real = [], hamming_masked.pair_masks

    def spied(*arguments):
        masks.append(real(*arguments))
        return masks[-1]

    monkeypatch.setattr(hamming_masked, "pair_masks", spied)
    codes = np.zeros((16, 2), np.uint32)
    for second in (16, 8):
        masks.clear()
        told = {0: {0: 3, 1: second}, 1: {0: 3, 1: 16}}
        for client, sizes in told.items():
            end = Network().endpoint(client)
            own = masked_hamming.Client(end, codes[: sizes[client]], sizes=sizes, run=0)
            list(own.send_shares(1 - client))
        first, other = (each.ravel()[:24] for each in masks)
        assert (first == other).all() == (second == 16)
