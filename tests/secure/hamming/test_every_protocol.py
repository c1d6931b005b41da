"""SecureHamming between parties, by every protocol: distances, views, bytes, bad messages."""

import message_sizes
import numpy as np
import paillier_pair
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paillier_pair import codes_of, joined, plain, with_extremes
from recording_network import Network

from jaxfed.errors import DroppedOut
from jaxfed.secure.hamming import masked as hamming_masked
from jaxfed.secure.hamming import paillier_packed, transfer
from jaxfed.secure.hamming.pair import bits_of
from jaxfed.secure.session.endpoint import SERVER

PROTOCOLS = ["ot", "masked"]
EVERY = [*PROTOCOLS, "phe"]  # of 256-bit keys


def blocks(protocol, network, a, b, run=0):
    """The protocol between client 0 with a and client 1 with b, and a server, block by block."""
    ends = [network.endpoint(0), network.endpoint(1), network.endpoint(SERVER)]
    num_bits = 32 * a.shape[1]
    if protocol == "phe":
        yield from paillier_pair.blocks(network, a, b)
    elif protocol == "masked":
        sizes = {0: len(a), 1: len(b)}
        first = hamming_masked.Client(ends[0], a, sizes=sizes, run=run)
        second = hamming_masked.Client(ends[1], b, sizes=sizes, run=run)
        server = hamming_masked.Server(ends[2], num_bits)
        for j, client in enumerate((first, second)):
            hamming_masked.receive_points(client.send_points(), server, j, sizes[j])
        shares = first.send_shares(1), second.send_shares(0)
        yield from hamming_masked.run_pair(*shares, server, (0, 1), (len(a), len(b)))
    else:
        yield from transfer.run_pair(
            transfer.First(ends[0], 1, a, run),
            transfer.Second(ends[1], 0, b, len(a), run),
            transfer.Server(ends[2], 0, 1, len(a), num_bits),
            (len(a), len(b), num_bits),
        )


def distances(protocol, network, a, b, run=0):
    return joined(blocks(protocol, network, a, b, run), a, b)


@given(
    st.sampled_from(PROTOCOLS),
    st.integers(1, 30),
    st.integers(1, 30),
    st.sampled_from([1, 3, 4, 32]),
    st.integers(0, 2**31),
)
def test_distances(protocol, n, m, num_words, seed):
    a = codes_of(n, num_words, seed)
    b = with_extremes(a, codes_of(m, num_words, seed + 1))
    np.testing.assert_array_equal(distances(protocol, Network(), a, b), plain(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize("protocol", EVERY)
def test_distances_of_4096_bits_over_several_blocks(protocol, monkeypatch):
    monkeypatch.setattr(hamming_masked, "BLOCK_POINTS", 16)
    monkeypatch.setattr(transfer, "MAX_POINTS", 24)
    monkeypatch.setattr(transfer, "PAYLOAD_BYTES", 5 * 2 * 4096 * 24)
    monkeypatch.setattr(paillier_packed, "MESSAGE_VECTORS", 16)
    a = codes_of(50, 128)
    b = with_extremes(a, codes_of(37, 128, seed=1))
    found = distances(protocol, Network(), a, b)
    np.testing.assert_array_equal(found, plain(a, b))
    assert found[-1, 0] == 0
    assert found[0, -1] == 4096


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(5, 7), (1, 1), (40, 3), (120, 20), (0, 2)])
@pytest.mark.parametrize("protocol", EVERY)
def test_bytes_are_as_counted(protocol, sizes, monkeypatch):
    monkeypatch.setattr(hamming_masked, "BLOCK_POINTS", 16)
    monkeypatch.setattr(transfer, "MAX_POINTS", 24)
    monkeypatch.setattr(paillier_packed, "MESSAGE_VECTORS", 6)
    n, m = sizes
    network = Network()
    distances(protocol, network, codes_of(n, 3), codes_of(m, 3))
    recorded = network.bytes_by_kind()
    if protocol == "ot":
        assert recorded == message_sizes.transfers(n, m, 96)
    elif protocol == "phe":
        assert recorded == message_sizes.encryptions(n, m, 96, paillier_pair.BITS)
    else:
        points = message_sizes.hidden_points(n, 96) + message_sizes.hidden_points(m, 96)
        assert recorded.get("points", 0) == points
        assert recorded.get("shares", 0) == message_sizes.hidden_shares(n, m, 96)


# --- who sees what -------------------------------------------------------------------------------


VIEWS = {
    "ot": {
        0: {"response", "correction"},
        1: {"request", "payload"},
        SERVER: {"first_sums", "second_sums"},
    },
    "masked": {0: set(), 1: set(), SERVER: {"points", "shares"}},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_receives_what(protocol):
    network = Network()
    distances(protocol, network, codes_of(2, 1), codes_of(2, 1))
    for address, kinds in VIEWS[protocol].items():
        assert {message.kind.partition("/")[0] for message in network.seen_by(address)} == kinds


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_runs_never_repeat_a_message(protocol):
    """Another run, the same points: every message but of a few bits differs."""
    a, b = codes_of(3, 4), codes_of(3, 4, seed=1)
    logs = []
    for run in (0, 1):
        network = Network()
        distances(protocol, network, a, b, run)
        logs.append(network.log)
    for ours, theirs in zip(*logs, strict=True):
        if len(ours.payload) > 8:
            assert ours.payload != theirs.payload


def test_server_view_of_one_message_is_the_same_for_flipped_points(monkeypatch):
    """Through the parties: all bits of everybody flipped, masks coupled, every byte the same.

    For x' = 1 - x: u' = u + 1 - 2 x keeps E, and r' = r + (|x| - 2 <x, v>) - (|x'| - 2 <x', v'>) keeps s.
    """
    from jaxfed.secure.hamming import masked as algebra

    a, b = codes_of(4, 2), codes_of(3, 2, seed=1)
    x, y = bits_of(a).astype(np.int64), bits_of(b).astype(np.int64)
    seen, label = [], f"masked hamming/0/{hamming_masked._agreement({0: 4, 1: 3})}"
    for flipped in (False, True):
        network = Network()
        with monkeypatch.context() as patch:
            if flipped:
                points, pairs = algebra.point_masks, algebra.pair_masks
                end = network.endpoint(0)

                def shifted_points(seed, rows, num_bits, width, end=end, points=points):
                    masks = points(seed, rows, num_bits, width)
                    own = seed == end.group_seed(f"{label}/points/0")
                    bits = (x if own else y)[rows.start : rows.stop]
                    return ((masks + 1 - 2 * bits) & 127).astype(np.uint16)

                def shifted_pairs(
                    seed, rows, columns, count, width, pairs=pairs, points=points, end=end
                ):
                    r = pairs(seed, rows, columns, count, width)
                    v = points(end.group_seed(f"{label}/points/1"), columns, 64, width)
                    v2 = v + 1 - 2 * y
                    shift = (x.sum(1)[:, None] - 2 * x @ v.T) - (
                        (1 - x).sum(1)[:, None] - 2 * (1 - x) @ v2.T
                    )
                    return ((r + shift) & 127).astype(np.uint16)

                patch.setattr(algebra, "point_masks", shifted_points)
                patch.setattr(algebra, "pair_masks", shifted_pairs)
            found = distances("masked", network, ~a if flipped else a, ~b if flipped else b)
        np.testing.assert_array_equal(found, plain(a, b))
        seen.append([m.payload for m in network.seen_by(SERVER)])
    assert seen[0] == seen[1]


# --- dropouts and bad messages -------------------------------------------------------------------


@pytest.mark.parametrize("protocol", EVERY)
@pytest.mark.parametrize("client", [0, 1])
def test_dropout_during_the_distances(protocol, client):
    """Wherever it happens, the pair ends with `DroppedOut`."""
    a, b = codes_of(3, 1), codes_of(2, 1, seed=1)
    complete = Network()
    distances(protocol, complete, a, b)
    kinds = {m.kind for m in complete.log if m.sender == client}
    for kind in kinds:
        network = Network()
        network.leave(client, "send", kind)
        done = []
        with pytest.raises(DroppedOut) as dropout:
            done.extend(blocks(protocol, network, a, b))
        assert dropout.value.client == client
        assert not done
        if protocol == "phe":  # nothing waits at the server
            assert not network.queues[0, SERVER]
            assert not network.queues[1, SERVER]


# --- mutations: each safeguard removed is noticed ------------------------------------------------
