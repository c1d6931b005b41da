"""SecureRowSums, restarted and resilient: sums, rounds, malformed messages, bytes."""

import message_sizes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_network import Network
from row_sums_parties import PROTOCOLS, exact, matrices, parties, run, uploads

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.primitives.prg import Keystream
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums import double_masks, masked_rows
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.phases import InProcess


@given(
    st.sampled_from(PROTOCOLS),
    st.lists(st.integers(0, 7), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(0, 2**31),
)
def test_sums_equal_the_ring_sums(protocol, sizes, num_classes, seed):
    """Bit for bit, and within the stated error of the real sums."""
    values, rows = matrices(sizes, num_classes, seed)
    sums = run(protocol, Network(), values, rows)
    assert list(sums) == list(range(len(sizes)))
    for client, got in sums.items():
        np.testing.assert_array_equal(got, exact(values, rows, range(len(sizes)), client))
        real = np.sum([v[rows[client]].astype(np.float64) for v in values], axis=0)
        assert np.all(np.abs(got - real) <= FixedPoint(len(sizes)).error + 1e-15)


def test_masked_rows_by_hand():
    """Over several blocks."""
    values = np.random.default_rng(0).normal(size=(5000, 5))
    seeds = [b"a" * 32, b"b" * 32]
    masked = masked_rows.masked_rows(values, FixedPoint(1), [(seeds[0], 1), (seeds[1], -1)])
    streams = [Keystream(seed).words(values.size).reshape(5000, 5) for seed in seeds]
    np.testing.assert_array_equal(masked, FixedPoint(1).encode(values) + streams[0] - streams[1])


# --- rounds and messages -------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_round_never_comes_again(protocol):
    """The same masks on two sets of contributions would show their difference."""
    values, rows = matrices([4, 3, 5])
    network = Network()
    with pytest.raises(ProtocolError, match="used before"):
        run(protocol, network, values, rows, claimed=["row sums/0"])
    assert not uploads(network)


def test_one_answer_to_survivors_a_round():
    """A second request could ask for the other secret of a client."""
    values, rows = matrices([4, 3, 5])
    clients, server = parties("resilient", Network(), values, rows)
    double_masks.run(InProcess(clients), server)
    with pytest.raises(ProtocolError, match="used before"):
        clients[0].reveal()


@pytest.mark.parametrize("protocol", ["resilient", "signed"])
def test_one_list_of_survivors_a_round(protocol):
    """Who signs two lists, or gives shares for the second, helps the server to tell each client its own."""
    values, rows = matrices([4, 3, 5, 2])
    network = Network()
    clients, server = parties(protocol, network, values, rows)
    double_masks.run(InProcess(clients), server)
    before = len([m for m in network.log if m.sender == 0])
    server._survivors = [0, 1, 2]
    server.ask(0)
    with pytest.raises(ProtocolError, match="used before"):
        clients[0].hear_survivors()
    assert len([m for m in network.log if m.sender == 0]) == before


@pytest.mark.parametrize("protocol", ["resilient", "signed"])
@pytest.mark.parametrize("step", ["upload", "hear_survivors", "reveal", "share_secrets"])
def test_nothing_of_a_round_serves_in_the_next_one(protocol, step):
    """A server that leaves a step out, or repeats one, would get both secrets of a client or its masks."""
    values, rows = matrices([4, 3, 5])
    clients, server = parties(protocol, Network(), values, rows)
    double_masks.run(InProcess(clients), server)
    server.start(1, [0, 1, 2])
    for client, own in clients.items():
        server.invite(client)
        own.announce()
        server.receive_key(client)
    server._survivors = [0, 1, 2]
    send = {"share_secrets": server.send_keys, "hear_survivors": server.ask}.get(step)
    if step == "share_secrets":
        server.send_keys(0)
        clients[0].share_secrets()
    if send:
        send(0)
    with pytest.raises(ProtocolError, match=r"before|not of this round"):
        getattr(clients[0], step)()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("sizes", [[4, 3, 5], [1, 0, 7, 2], [6]])
def test_bytes_are_as_counted(protocol, sizes):
    values, rows = matrices(sizes, num_classes=4)
    network = Network()
    run(protocol, network, values, rows)
    expected = {
        "restarting": message_sizes.single_masks(sizes, 4),
        "resilient": message_sizes.double_masks(sizes, 4, range(len(sizes))),
        "signed": message_sizes.double_masks(sizes, 4, range(len(sizes)), signed=True),
    }[protocol]
    recorded = network.bytes_by_kind()
    assert {kind: recorded.get(kind, 0) for kind in expected} == expected
    assert recorded.keys() <= expected.keys()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("damage", ["cut", "longer", "empty"])
def test_malformed_messages_lose_their_sender_or_give_an_error(protocol, damage):
    """Every message of the run in turn: those to the server lose the client, others end the run."""
    values, rows = matrices([4, 3, 5])
    network = Network()
    run(protocol, network, values, rows)
    change = {"cut": lambda b: b[:-1], "longer": lambda b: b + b"\0", "empty": lambda b: b""}[
        damage
    ]
    for position in range(len(network.log)):
        damaged = Network()

        def tamper(message, damaged=damaged, position=position):
            here = len(damaged.log) - 1 == position
            return change(message.payload) if here else message.payload

        damaged.tamper = tamper
        sender, receiver = network.log[position][:2]
        if receiver != SERVER:
            with pytest.raises(ProtocolError, match=r"bytes|upload|signatures"):
                run(protocol, damaged, values, rows)
            continue
        sums = run(protocol, damaged, values, rows)
        others = [client for client in range(3) if client != sender]
        assert sorted(sums) == ([] if protocol == "signed" else others)  # two are too few to sign
        for client, own in sums.items():
            possible = [exact(values, rows, some, client) for some in (others, range(3))]
            assert any(np.array_equal(own, one) for one in possible)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e6])
def test_values_out_of_range_are_not_sent(protocol, value):
    values, rows = matrices([2, 1, 2])
    values[1][0, 0] = value
    network = Network()
    with pytest.raises(UsageError, match="not finite or reaches"):
        run(protocol, network, values, rows)
    assert 1 not in uploads(network)
