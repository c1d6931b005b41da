"""SecureHamming of later points with a graph's: neighbors, who leaves, what is compared and masked."""

import numpy as np
import pytest
import reference_kernels as reference
from scipy import stats

from jaxfed.secure import later_neighbors
from jaxfed.secure.hamming import masked, matrix, protocols
from jaxfed.secure.hamming.nearest_others import NearestPoints
from jaxfed.secure.primitives import paillier
from jaxfed.secure.primitives.blocks import Block
from jaxfed.secure.primitives.ring import packed_size, unpack
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session

KEY_BITS = 128
KEY = paillier.generate_key(KEY_BITS, insecure=True)
NUM_BITS = 32
PROTOCOLS = ["masked", "ot", "phe"]


@pytest.fixture(autouse=True)
def small_key(monkeypatch):
    monkeypatch.setattr(paillier, "generate_key", lambda bits: KEY)


def codes_of(sizes, seed):
    """Few bits differ, so that ties abound."""
    rng = np.random.default_rng(seed)
    return {j: rng.integers(0, 8, (n, 1), dtype=np.uint32) for j, n in enumerate(sizes)}


def expected(later, graph, k):
    """By sorting (distance, index), as `knn.hamming_knn_among` does; NumPy."""
    h = reference.hamming_distances(*(np.concatenate(list(c.values())) for c in (later, graph)))
    order = np.argsort(h, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(h, order, axis=1)


def found(session, later, graph, protocol, k=2, **options):
    return later_neighbors.nearest_in_graph(
        session, later, graph, k, getattr(protocols, protocol), key_bits=KEY_BITS, **options
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_neighbors_are_those_of_numpy(protocol):
    """Every client's points, one without later ones and one without points of the graph among them."""
    later, graph = codes_of([2, 0, 3, 1], 0), codes_of([3, 2, 0, 2], 1)
    told = []
    near = found(Session(4), later, graph, protocol, progress=lambda *n: told.append(n))
    indices, distances = expected(later, graph, 2)
    assert near.clients == [0, 1, 2, 3]
    np.testing.assert_array_equal(near.indices, indices)
    np.testing.assert_array_equal(near.distances, distances)
    pairs = 2 * (2 + 2) + 3 * (3 + 2 + 2) + 1 * (3 + 2)
    assert told[-1] == (pairs, pairs)


def test_blocks_end_where_points_do(monkeypatch):
    for module in (matrix, masked):
        monkeypatch.setattr(module, "BLOCK_POINTS", 2)
    later, graph = codes_of([3, 4], 2), codes_of([5, 3], 3)
    near = found(Session(2), later, graph, "masked", k=4)
    indices, distances = expected(later, graph, 4)
    np.testing.assert_array_equal(near.indices, indices)
    np.testing.assert_array_equal(near.distances, distances)


@pytest.mark.parametrize("protocol", ["masked", "ot"])
@pytest.mark.parametrize(("kind", "after"), [("own", 0), ("", 2)])
def test_who_leaves_is_as_if_it_had_not_been_there(protocol, kind, after):
    later, graph = codes_of([2, 2, 1], 0), codes_of([3, 2, 2], 1)
    session = Session(3)
    session.presence.lose_when(1, "send", kind, after=after)
    near = found(session, later, graph, protocol)
    assert near.clients == session.clients == [0, 2]
    del later[1], graph[1]
    indices, distances = expected(later, graph, 2)
    np.testing.assert_array_equal(near.indices, indices)
    np.testing.assert_array_equal(near.distances, distances)


def test_nobody_is_left():
    presence = Presence()
    session = Session(2, presence=presence)
    presence.lose(0)
    presence.lose(1)
    near = found(session, codes_of([1, 1], 0), codes_of([2, 1], 1), "masked")
    assert near.clients == []
    assert near.indices.shape == (0, 2)


def test_fewer_points_than_neighbors():
    near = NearestPoints({0: 1, 1: 0}, {0: 0, 1: 1}, 32, 3)
    near.add(Block(0, 1, range(1), range(1), np.array([[5]], np.uint16)))
    indices, distances = near.found()
    assert indices.tolist() == [[0, -1, -1]]
    assert distances.tolist() == [[5, 33, 33]]


# --- what is sent --------------------------------------------------------------------------------


class Heard:
    """An end that keeps what it receives, and for which seeds it asks."""

    def __init__(self, end):
        self._end, self.received, self.seeds = end, [], []

    def __getattr__(self, name):
        return getattr(self._end, name)

    def receive(self, sender, kind):
        payload = self._end.receive(sender, kind)
        self.received.append((sender, kind, payload))
        return payload

    def pair_seed(self, partner, label):
        self.seeds.append((partner, label))
        return self._end.pair_seed(partner, label)


def heard_session(num_clients):
    session = Session(num_clients)
    session.endpoints = {address: Heard(end) for address, end in session.endpoints.items()}
    return session


def test_only_pairs_of_a_later_and_an_old_point_are_compared():
    """Distances that the server hears of: m n of them, and none twice."""
    session = heard_session(2)
    later, graph = codes_of([20, 9], 0), codes_of([11, 30], 1)
    found(session, later, graph, "masked")
    server = session.endpoints[SERVER]
    shares = [len(payload) for _, kind, payload in server.received if kind.startswith("shares")]
    own = [len(payload) for _, kind, payload in server.received if kind == "own"]
    assert shares == [packed_size(pairs, 6) for pairs in 2 * [20 * 30] + 2 * [9 * 11]]
    assert own == [packed_size(pairs, 6) for pairs in (20 * 11, 9 * 30)]
    for client in (0, 1):
        assert session.endpoints[client].received == []


def test_masks_are_of_this_run_and_of_one_point():
    """Points of zeros show -u, pairs of them r: uniform, and others in every run and for either set."""
    session = heard_session(2)
    zeros = {j: np.zeros((40, 1), np.uint32) for j in range(2)}
    for _ in range(2):
        found(session, zeros, zeros, "masked")
    server = session.endpoints[SERVER]
    for kind, count in (("points", 40 * NUM_BITS), ("shares/0/1", 40 * 40)):
        sent = [
            unpack(payload, count, 6)
            for sender, heard, payload in server.received
            if heard == kind and sender == 0
        ]
        assert len(sent) == 4  # both runs: of its later points and of its points of the graph
        assert (
            stats.chisquare(np.bincount(np.concatenate(sent).ravel(), minlength=64)).pvalue > 1e-6
        )
        for first in range(4):
            for second in range(first):
                assert np.mean(sent[first] == sent[second]) < 0.05  # 1/64 by chance


def test_contexts_of_transfers_serve_once():
    """Two clients meet twice, each first in one of the pairs, and meet again."""
    session = heard_session(2)
    for _ in range(2):
        found(session, codes_of([1, 1], 0), codes_of([1, 1], 1), "ot")
    for client in (0, 1):
        seeds = [own for own in session.endpoints[client].seeds if own[1].startswith("ot/")]
        assert len(seeds) == len(set(seeds)) == 4
