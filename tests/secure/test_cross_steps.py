"""H of several clients, with dropouts, and XCLP over the secure protocols against XCLP in the clear."""

import itertools
import tracemalloc

import message_sizes
import numpy as np
import pytest
import reference_kernels as reference
from hypothesis import given
from hypothesis import strategies as st
from recording_network import Network
from secure_labels import digits, disagreement

from jaxfed import xclp
from jaxfed.errors import ProtocolError
from jaxfed.federation.execution.settings import Execution
from jaxfed.kernels import knn
from jaxfed.secure.hamming import masked, transfer
from jaxfed.secure.hamming import matrix as hamming_matrix
from jaxfed.secure.hamming.nearest_others import NearestOthers
from jaxfed.secure.primitives.blocks import Block, ranges
from jaxfed.secure.session.endpoint import SERVER

PROTOCOLS = ["ot", "masked"]


def codes_of(sizes, num_words=2, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2**32, (size, num_words), dtype=np.uint32) for size in sizes]


class Matrix:
    """H itself, for comparison; what protocols are for keeps `NearestOthers`."""

    def __init__(self, sizes):
        ends = np.cumsum([0, *sizes.values()])
        self.rows = {j: np.arange(*ends[i : i + 2]) for i, j in enumerate(sizes)}
        self._h = np.full((ends[-1], ends[-1]), 65535, np.uint16)

    clients = property(lambda self: list(self.rows))

    def add(self, block):
        rows = self.rows[block.first][block.rows.start : block.rows.stop]
        columns = self.rows[block.second][block.columns.start : block.columns.stop]
        self._h[np.ix_(rows, columns)] = block.distances
        self._h[np.ix_(columns, rows)] = block.distances.T

    def remove(self, client):
        del self.rows[client]

    @property
    def distances(self):
        kept = np.concatenate(list(self.rows.values()))
        return self._h[np.ix_(kept, kept)]


def secure_matrix(protocol, network, codes, progress=None):
    """H of all clients' codes; each client's part runs with its own endpoint."""
    sizes = {j: len(c) for j, c in enumerate(codes)}
    num_bits = 32 * codes[0].shape[1]
    ends = [network.endpoint(j) for j in sizes]
    server_end = network.endpoint(SERVER)
    if protocol == "masked":
        clients = [masked.Client(ends[j], codes[j], sizes=sizes, run=0) for j in sizes]
        server = masked.Server(server_end, num_bits)

    def own(j):
        messages = hamming_matrix.OwnDistances(ends[j], codes[j]).send_own()
        yield from hamming_matrix.run_own(messages, server_end, j, sizes[j], num_bits)
        if protocol == "masked":
            masked.receive_points(clients[j].send_points(), server, j, sizes[j])

    def pair(j, k):
        if protocol == "masked":
            shares = clients[j].send_shares(k), clients[k].send_shares(j)
            return masked.run_pair(*shares, server, (j, k), (sizes[j], sizes[k]))
        return transfer.run_pair(
            transfer.First(ends[j], k, codes[j], 0),
            transfer.Second(ends[k], j, codes[k], sizes[j], 0),
            transfer.Server(server_end, j, k, sizes[j], num_bits),
            (sizes[j], sizes[k], num_bits),
        )

    matrix = Matrix(sizes)
    pairs = [list(itertools.combinations(sizes, 2))]
    hamming_matrix.collect(matrix, sizes, own, pair, pairs=pairs, progress=progress)
    return matrix


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("sizes", [[2, 1, 2], [1, 0, 3], [3]])
def test_matrix_of_all_clients(protocol, sizes):
    codes = codes_of(sizes, 1)
    told = []
    matrix = secure_matrix(protocol, Network(), codes, lambda *numbers: told.append(numbers))
    joint = np.concatenate(codes)
    np.testing.assert_array_equal(matrix.distances, reference.hamming_distances(joint, joint))
    total = (sum(sizes) ** 2 - sum(s * s for s in sizes)) // 2
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert not told or told[-1] == (total, total)


def nearest_of_all(search, sizes, num_neighbors, block_points, gone, seed):
    """Out of blocks; few bits, so that ties abound; more neighbors than there are; one may leave."""
    codes = [c & np.uint32(7) for c in codes_of(sizes, 1, seed)]
    nearest = NearestOthers(dict(enumerate(sizes)), 32, num_neighbors)
    for j, own in enumerate(codes):
        for k in range(j, len(codes)):
            for rows in ranges(sizes[j], block_points):
                for columns in ranges(sizes[k], block_points):
                    if j < k or rows.start <= columns.start:
                        part, other = own[rows.start : rows.stop], codes[k][columns.start :]
                        h = reference.hamming_distances(part, other[: len(columns)])
                        nearest.add(Block(j, k, rows, columns, h.astype(np.uint16)))
    if gone in nearest.clients:
        nearest.remove(gone)
        del codes[gone]
    joint = np.concatenate([*codes, np.zeros((0, 1), np.uint32)])
    indices, distances = nearest.found()
    expected = search(joint, num_neighbors)
    np.testing.assert_array_equal(indices, expected[0])
    np.testing.assert_array_equal(distances, expected[1])


@pytest.mark.parametrize("gone", [-1, 1])
@pytest.mark.parametrize(
    ("sizes", "num_neighbors"), [([4, 5, 3, 8], 4), ([3, 0, 2], 7), ([0, 0], 1), ([1], 4)]
)
def test_nearest_as_the_kernel_finds_them(sizes, num_neighbors, gone):
    """By NumPy, which finds what the kernel does, and needs no program for each number of points."""
    for seed, block_points in enumerate((2, 3, 512)):
        nearest_of_all(reference.hamming_knn, sizes, num_neighbors, block_points, gone, seed)


@pytest.mark.slow
@pytest.mark.gpu
@given(
    st.sampled_from([[1], [3, 0, 2], [4, 5, 3, 8], [0, 0], [300, 2]]),
    st.sampled_from([1, 4, 7]),
    st.sampled_from([2, 3, 512]),
    st.integers(-1, 3),
    st.integers(0, 2**31),
)
def test_nearest_as_the_kernel_finds_them_in_many_cases(
    sizes, num_neighbors, block_points, gone, seed
):
    nearest_of_all(knn.hamming_knn, sizes, num_neighbors, block_points, gone, seed)


def test_neighbors_take_memory_by_points_not_by_pairs():
    """A block is dropped when it has been searched: kept are 8 k bytes a point and client."""
    sizes, k, block = {0: 1000, 1: 2000}, 5, 250
    h = np.random.default_rng(0).integers(0, 4097, (block, block), dtype=np.uint16)
    tracemalloc.start()
    nearest = NearestOthers(sizes, 4096, k)
    for j, m in ((0, 0), (0, 1), (1, 1)):
        for rows in ranges(sizes[j], block):
            for columns in ranges(sizes[m], block):
                if j < m or rows.start <= columns.start:
                    nearest.add(Block(j, m, rows, columns, h))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1.1 * 8 * k * 3000 * 2
    assert peak - kept < 6 * 8 * block * block


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("when", ["before", "own", "first pair", "second pair"])
def test_dropout_is_as_if_the_client_had_not_been_there(protocol, gone, when):
    """Before and during SecureHamming (Section 3.3): H of the others, entry for entry."""
    codes = codes_of([2, 3, 2], 1)
    network = Network()
    kinds = {"ot": "", "masked": "shares"}[protocol]
    if when == "before":
        network.gone.add(gone)
    elif when == "own":
        network.leave(gone, "send", "own")
    else:
        # "own" was sent before; of the pairs' messages so many have gone out.
        after = {"first pair": 0, "second pair": 1}[when]
        skipped = 1 if kinds == "" else 0
        network.leave(gone, "send", kinds, after=after + skipped)
    matrix = secure_matrix(protocol, network, codes)
    assert gone in network.gone
    stayed = [j for j in range(3) if j != gone]
    assert matrix.clients == stayed
    joint = np.concatenate([codes[j] for j in stayed])
    np.testing.assert_array_equal(matrix.distances, reference.hamming_distances(joint, joint))


@pytest.mark.parametrize("num_points", [1, 2, 3, 5, 8])
def test_own_distances_by_blocks(num_points, monkeypatch):
    monkeypatch.setattr(hamming_matrix, "BLOCK_POINTS", 3)
    network, [codes] = Network(), codes_of([num_points], 2)
    matrix = Matrix({0: num_points})
    messages = hamming_matrix.OwnDistances(network.endpoint(0), codes).send_own()
    end = network.endpoint(SERVER)
    for block in hamming_matrix.run_own(messages, end, 0, num_points, 64):
        matrix.add(block)
    np.testing.assert_array_equal(matrix.distances, reference.hamming_distances(codes, codes))
    assert network.bytes_by_kind() == {"own": message_sizes.own_distances(num_points, 64, 3)}


@pytest.mark.parametrize("columns", [range(4), range(4, 8)])
def test_own_distances_are_refused_when_malformed(columns):
    for payload in (b"", bytes(13), bytes(15), b"\xff" * 14):  # 6 or 16 values of 7 bits
        network = Network()
        end, server = network.endpoint(0), network.endpoint(SERVER)
        network.tamper = lambda message, payload=payload: payload
        end.send(SERVER, "own", b"")
        with pytest.raises(ProtocolError, match=r"take 14|above 64|padding"):
            hamming_matrix.receive_own(server, 0, range(4), columns, 64)
    assert message_sizes.own_distances(4, 64) == 14


# --- XCLP ----------------------------------------------------------------------------------------


PARAMETERS = {"num_classes": 10, "num_bits": 64, "num_neighbors": 3, "influence": "columns"}
SWITCHES = [  # hamming, row_sums, number of points
    ("masked", "masked", 150),
    ("ot", "masked_resilient", 150),
    ("ot", "plaintext", 60),
    ("plaintext", "masked", 60),
    ("plaintext", "masked_resilient_signed", 60),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("hamming", "row_sums", "num_points"), SWITCHES)
def test_the_switches_of_propagate_labels(hamming, row_sums, num_points):
    """By name, through a real session; a client without points takes part."""
    vectors, labels = digits(2, num_points)
    vectors, labels = [*vectors, vectors[0][:0]], [*labels, labels[0][:0]]
    plain = xclp.propagate_labels(vectors, labels, **PARAMETERS)
    secure = xclp.propagate_labels(
        vectors, labels, hamming=hamming, row_sums=row_sums, **PARAMETERS
    )
    assert disagreement(secure, plain, 3) <= 1


@pytest.mark.parametrize(("key_bits", "workers"), [(3072, 1), (2048, 0)])
@pytest.mark.sample(1)
def test_key_size_and_worker_processes(key_bits, workers):
    """The size shows in the bytes, the processes nowhere; progress counts to the end."""
    vectors, labels = digits(2, 20)
    told = []
    parameters = {"num_classes": 10, "num_bits": 32, "num_neighbors": 3}
    result = xclp.cross_client_label_propagation(
        vectors,
        labels,
        xclp.Parameters(hamming="phe", key_bits=key_bits, **parameters),
        Execution(workers, lambda *numbers: told.append(numbers)),
    )
    plain = xclp.propagate_labels(vectors, labels, **parameters)
    assert disagreement(result.predictions, plain, 2) <= 1
    sizes = [len(v) for v in vectors]
    expected = message_sizes.encryptions(*sizes, 32, key_bits)
    assert result.communication.upload["opened"] == expected["opened"]
    pairs = sizes[0] * sizes[1]
    assert told[-1] == ("pairs of points", pairs, pairs)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_bytes_of_protocols_are_those_of_their_channels():
    vectors, labels = digits(3, 60)
    result = xclp.cross_client_label_propagation(
        vectors,
        labels,
        xclp.Parameters(hamming="masked", row_sums="masked", **PARAMETERS),
    )
    upload = result.communication.upload
    sizes = [len(v) for v in vectors]
    assert upload["own"] == sum(message_sizes.own_distances(n, 64) for n in sizes)
    assert upload["points"] == sum(message_sizes.hidden_points(n, 64) for n in sizes)
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert upload["shares"] == sum(
        message_sizes.hidden_shares(sizes[j], sizes[k], 64) for j, k in pairs
    )
    assert upload["upload"] == message_sizes.single_masks(sizes, 10)["upload"]
    assert "codes" not in upload


@pytest.mark.slow
@pytest.mark.parametrize("hamming", ["masked", "ot", "phe"])
def test_digits_by_every_protocol_that_is_meant_for_use(hamming):
    vectors, labels = digits(5, 500)
    parameters = {"num_classes": 10, "num_bits": 1024, "influence": "columns"}
    plain = xclp.propagate_labels(vectors, labels, **parameters)
    secure = xclp.propagate_labels(
        vectors, labels, hamming=hamming, row_sums="masked", **parameters
    )
    assert disagreement(secure, plain, 5) <= 1
