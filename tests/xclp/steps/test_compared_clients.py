"""Line 5 among chosen pairs of clients: the pairs, their neighbors, and the same over protocols."""

import dataclasses
from collections import Counter
from itertools import combinations

import message_sizes
import numpy as np
import pytest
import reference_kernels as reference
from secure_labels import digits, disagreement

from jaxfed import xclp
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import protocols
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.parties import Session
from jaxfed.xclp.steps.hamming import (
    _among_chosen,
    chosen_pairs,
    drawn_pairs,
    pair_choices,
)

BY = ["random", "neighbors"]
SIZES = [3, 0, 5, 1, 4, 2, 20, 3, 0, 2, 4, 1, 3]


def codes_of(sizes=SIZES, seed=0):
    """Few bits, so that ties and equal codes abound."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 64, (size, 1), dtype=np.uint32) for size in sizes]


def knn_among(codes, pairs, k):
    """NumPy's: all distances, infinite where clients are not compared."""
    owner, joint = np.repeat(np.arange(len(codes)), list(map(len, codes))), np.concatenate(codes)
    allowed = np.eye(len(codes), dtype=bool)
    for first, second in pairs:
        allowed[first, second] = allowed[second, first] = True
    h = reference.hamming_distances(joint, joint).astype(np.int64)
    h[~allowed[np.ix_(owner, owner)]] = np.iinfo(np.int64).max
    np.fill_diagonal(h, np.iinfo(np.int64).max)
    order = np.argsort(h, axis=1, kind="stable")[:, :k]
    distances = np.take_along_axis(h, order, axis=1)
    is_there = distances < np.iinfo(np.int64).max
    return np.where(is_there, order, -1), np.where(is_there, distances, 33)


def recorded(compared):
    """The choices, and a list to which each adds its pairs."""
    pairs = []

    def recording(choose):
        def choice(sizes, indices):
            found = choose(sizes, indices)
            pairs.extend(found)
            return found

        return choice

    return [recording(choose) for choose in compared], pairs


def check_degrees(pairs, clients, most):
    others = Counter(client for pair in pairs for client in pair)
    assert len(set(pairs)) == len(pairs)
    assert all(first < second for first, second in pairs)
    assert set(others) <= set(clients)
    assert max(others.values()) <= most
    return others


def is_connected(pairs, clients):
    groups = {client: {client} for client in clients}
    for first, second in pairs:
        if groups[first] is not groups[second]:
            joint = groups[first] | groups[second]
            groups.update(dict.fromkeys(joint, joint))
    return len(groups[clients[0]]) == len(clients)


@pytest.mark.parametrize(("p", "size"), [(6, 4), (7, 4), (12, 8), (13, 8), (50, 2), (101, 20)])
def test_drawn_graphs_are_regular_and_connected(p, size):
    clients = [3 * client + 1 for client in range(p)]
    for seed in range(20):
        pairs = drawn_pairs(clients, size, np.random.default_rng(seed))
        assert set(check_degrees(pairs, clients, size).values()) == {size}
        assert len(pairs) == p * size / 2
        assert is_connected(pairs, clients)


def test_the_server_chooses_pairs_with_the_most_common_points():
    """Beside loops: links of a point both ways, products over points, and the greedy order."""
    sizes = {j: size for j, size in enumerate(SIZES) if j != 4}
    n = sum(sizes.values())
    owner = np.repeat(list(sizes), list(sizes.values()))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        indices = rng.integers(-1, n, (n, 3))
        compared = set(drawn_pairs([j for j, size in sizes.items() if size], 4, rng))
        near = Counter()
        for point, others in enumerate(indices):
            for other in others[others >= 0].tolist():
                near[owner[point], other] += 1
                near[owner[other], point] += 1
        common = {
            (j, k): sum(near[j, point] * near[k, point] for point in range(n))
            for j, k in combinations(sizes, 2)
        }
        others = Counter(client for pair in compared for client in pair)
        expected = []
        for pair in sorted(common, key=lambda pair: (-common[pair], pair)):
            if common[pair] and pair not in compared and max(others[j] for j in pair) < 6:
                expected.append(pair)
                others.update(pair)
        found = chosen_pairs(sizes, indices, compared, 6)
        assert found == sorted(expected)
        assert found
        check_degrees([*compared, *found], sizes, 6)


@pytest.mark.parametrize(
    ("by", "num_neighbors"), [("random", 3), ("neighbors", 3), ("neighbors", 40)]
)
def test_neighbors_are_the_nearest_of_compared_clients(by, num_neighbors):
    """In the clear and under masks, beside NumPy's; equal codes of a point's own client among them."""
    codes = codes_of()
    choices, pairs = recorded(pair_choices(8, by, seed=5))
    plain = _among_chosen(codes, num_neighbors, choices)
    check_degrees(pairs, [j for j, size in enumerate(SIZES) if size], 8)
    for ours, twin in zip(plain, knn_among(codes, pairs, num_neighbors), strict=True):
        np.testing.assert_array_equal(ours, twin)

    choices, over_protocol = recorded(pair_choices(8, by, seed=5))
    session = Session(len(codes))
    found = cross_steps.nearest_others(
        session, dict(enumerate(codes)), num_neighbors, protocols.masked, choices=choices
    )
    assert over_protocol == pairs
    for ours, theirs in zip(found[1:], plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    kinds = {route.kind for route in session.channel.volumes if route.kind.startswith("shares")}
    assert kinds == {f"shares/{first}/{second}" for first, second in pairs}
    assert session.communication().upload["shares"] == sum(
        message_sizes.hidden_shares(SIZES[j], SIZES[k], 32) for j, k in pairs
    )


def test_a_clients_bytes_are_those_of_the_page():
    """docs/protocols.md: hidden points, own distances, and 259 bytes for each other client."""
    codes = {j: np.zeros((10, 128), np.uint32) for j in range(12)}
    for h in (4, 8):
        session = Session(len(codes))
        before = session.communication()
        choices = pair_choices(h, "random", 0)
        cross_steps.nearest_others(session, codes, 3, protocols.masked, choices=choices)
        sent = session.communication().upload - before.upload
        total = sum(sent.values()) / len(codes)
        assert total == pytest.approx(66_600 + 259 * h, rel=0.005)


def test_a_draw_depends_on_no_code_and_a_choice_does():
    """So clients learn nothing by whom they are compared with, but where the server chooses."""
    found = {}
    for by, seed in ((by, seed) for by in BY for seed in (0, 1)):
        choices, found[by, seed] = recorded(pair_choices(8, by, seed=5))
        _among_chosen(codes_of(seed=seed), 3, choices)
    assert found["random", 0] == found["random", 1]
    assert found["neighbors", 0] != found["neighbors", 1]


@pytest.mark.parametrize("by", BY)
def test_who_leaves_has_no_neighbors_and_is_none(by):
    """Before the draw it is as if it had never been there; in the middle its pairs are lost."""
    codes = codes_of([3, 2, 4, 1, 3, 2, 3, 2])
    for kind, after in (("own", 0), ("shares", 2)):
        presence = Presence()
        presence.lose_when(3, "send", kind, after=after)
        choices, pairs = recorded(pair_choices(4, by, seed=0))
        session = Session(len(codes), presence=presence)
        found = cross_steps.nearest_others(
            session, dict(enumerate(codes)), 3, protocols.masked, choices=choices
        )
        stay = [j for j in range(len(codes)) if j != 3]
        assert found.clients == stay
        number = {j: place for place, j in enumerate(stay)}
        kept = [(number[j], number[k]) for j, k in pairs if 3 not in (j, k)]
        staying = [codes[j] for j in stay]
        for ours, twin in zip(found[1:], knn_among(staying, kept, 3), strict=True):
            np.testing.assert_array_equal(ours, twin)
        if kind == "own":
            never = _among_chosen(staying, 3, pair_choices(4, by, seed=0))
            for ours, theirs in zip(found[1:], never, strict=True):
                np.testing.assert_array_equal(ours, theirs)


P = xclp.Parameters(num_classes=10, num_bits=64, num_neighbors=3, alpha=0.9, compared_clients=4)


def labeled(p):
    vectors, labels = digits(6, 48)
    return xclp.cross_client_label_propagation(vectors, labels, p)


@pytest.mark.parametrize(("by", "hamming"), [("random", "ot"), ("neighbors", "masked")])
@pytest.mark.sample(1)  # the block of docs/protocols.md is another
def test_labels_over_protocols_are_those_in_the_clear(by, hamming):
    p = dataclasses.replace(P, compared_by=by)
    secure = dataclasses.replace(p, hamming=hamming, row_sums="masked", influence="columns")
    assert disagreement(labeled(secure).predictions, labeled(p).predictions, 6) <= 1


@pytest.mark.parametrize("hamming", ["plaintext", "masked"])
def test_all_others_are_the_bits_of_today(hamming):
    p = dataclasses.replace(P, hamming=hamming)
    today = labeled(dataclasses.replace(p, compared_clients=0))
    for by in BY:
        ours = labeled(dataclasses.replace(p, compared_clients=8, compared_by=by))
        for mine, theirs in zip(ours.predictions, today.predictions, strict=True):
            np.testing.assert_array_equal(mine.scores, theirs.scores)
        assert ours.communication == today.communication
    few = labeled(p).predictions
    assert any(
        np.any(mine.scores != own.scores) for mine, own in zip(few, ours.predictions, strict=True)
    )
