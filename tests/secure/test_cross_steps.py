"""H of several clients, with dropouts, and XCLP over the secure protocols against XCLP in the clear."""

import message_sizes
import numpy as np
import pytest
import reference_kernels as reference
from secure_labels import digits, disagreement

from jaxfed import xclp
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import matrix as hamming_matrix
from jaxfed.secure.hamming import protocols
from jaxfed.secure.hamming.matrix import NearestOthers
from jaxfed.secure.hamming.pair import Block, ranges
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.parties import Session

PROTOCOLS = ["ot", "masked"]


def codes_of(sizes, num_words=2, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2**32, (size, num_words), dtype=np.uint32) for size in sizes]


def assert_nearest(found, codes, clients, num_neighbors=9):
    """All others of these clients' points, nearest first."""
    assert found.clients == clients
    joint = np.concatenate([codes[j] for j in clients])
    indices, distances = reference.hamming_knn(joint, num_neighbors)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_array_equal(found.distances, distances)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("sizes", [[2, 1, 2], [1, 0, 3], [3]])
def test_nearest_of_all_clients(protocol, sizes):
    codes, told = codes_of(sizes, 1), []
    found = cross_steps.nearest_others(
        Session(len(sizes)),
        dict(enumerate(codes)),
        9,
        getattr(protocols, protocol),
        progress=lambda *numbers: told.append(numbers),
    )
    assert_nearest(found, codes, list(range(len(sizes))))
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
    indices, distances = nearest.in_order()
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


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("when", ["before", "own", "first pair", "second pair"])
def test_dropout_is_as_if_the_client_had_not_been_there(protocol, gone, when):
    """Before and during SecureHamming (Section 3.3): the neighbors of the others, entry for entry."""
    codes, presence = codes_of([2, 3, 2], 1), Presence()
    session = Session(3, presence=presence)
    own = int(protocol == "ot")  # messages of any kind before those of pairs
    after = {"own": 0, "first pair": own, "second pair": own + 1}
    if when == "before":
        presence.lose(gone)
    else:
        kind = "own" if when == "own" else {"masked": "shares", "ot": ""}[protocol]
        presence.lose_when(gone, "send", kind, after=after[when])
    found = cross_steps.nearest_others(
        session, dict(enumerate(codes)), 9, getattr(protocols, protocol)
    )
    assert presence.gone == {gone}
    assert_nearest(found, codes, [j for j in range(3) if j != gone])


@pytest.mark.parametrize("num_points", [1, 2, 3, 5, 8])
def test_own_distances_by_blocks(num_points, monkeypatch):
    monkeypatch.setattr(hamming_matrix, "BLOCK_POINTS", 3)
    [codes], session = codes_of([num_points], 2), Session(1)
    found = cross_steps.nearest_others(session, {0: codes}, 9, protocols.masked)
    assert_nearest(found, [codes], [0])
    sent = session.communication().upload["own"]
    assert sent == message_sizes.own_distances(num_points, 64, 3)


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
