"""SecureRowSums when clients leave, at every point that Section 3.3 names."""

import numpy as np
import pytest
from recording_network import Network
from row_sums_parties import PROTOCOLS, exact, matrices, run


@pytest.mark.parametrize(
    ("action", "kind", "contributes", "uploads"),
    [
        ("send", "mask_key", False, 0),
        ("receive", "mask_keys", False, 0),
        ("send", "secrets", False, 0),
        ("receive", "secrets", False, 0),
        ("send", "upload", False, 1),
        ("receive", "survivors", True, 1),
        ("send", "shares", True, 1),
    ],
)
def test_resilient_dropout(action, kind, contributes, uploads):
    """Nobody uploads twice; what was uploaded counts."""
    values, rows = matrices([4, 3, 5, 2, 6])
    network = Network()
    network.leave(2, action, kind)
    sums = run("resilient", network, values, rows)
    assert sorted(sums) == [0, 1, 3, 4]
    contributors = [0, 1, 2, 3, 4] if contributes else [0, 1, 3, 4]
    for client, got in sums.items():
        np.testing.assert_array_equal(got, exact(values, rows, contributors, client))
    by_client = [m.sender for m in network.log if m.kind.startswith("upload")]
    assert len(by_client) == len(set(by_client))
    if uploads:
        assert {m.kind for m in network.log if m.kind.startswith("upload")} == {"upload/0"}


@pytest.mark.parametrize(
    ("action", "kind"), [("send", "upload"), ("receive", "survivors"), ("send", "shares")]
)
@pytest.mark.parametrize(("num_clients", "gone"), [(2, [0]), (4, [1, 2]), (5, [0, 2, 4])])
def test_too_few_for_the_threshold_start_another_round(action, kind, num_clients, gone):
    """As in the paper's restart: those present, their contributions alone, bit for bit."""
    values, rows = matrices([4, 3, 5, 2, 6][:num_clients])
    network = Network()
    for client in gone:
        network.leave(client, action, kind)
    sums = run("resilient", network, values, rows)
    stayed = [client for client in range(num_clients) if client not in gone]
    assert sorted(sums) == stayed
    for client, got in sums.items():
        np.testing.assert_array_equal(got, exact(values, rows, stayed, client))
    rounds = {m.kind for m in network.log if m.kind.startswith("sums")}
    assert rounds == {"sums/1"}  # of the round that was given up nobody got any


@pytest.mark.parametrize(
    ("gone", "action", "kind", "contributors"),
    [
        ([1], "send", "secrets", [0, 2, 3, 4]),
        ([1], "send", "upload", [0, 2, 3, 4]),
        ([1], "send", "signature", [0, 1, 2, 3, 4]),
        ([1], "receive", "signatures", [0, 1, 2, 3, 4]),
        ([1, 2], "send", "mask_key", None),
        ([1, 2], "send", "upload", None),
        ([1, 2], "send", "signature", None),
    ],
)
def test_who_signs_stops_where_a_third_has_left(gone, action, kind, contributors):
    """Four of five get their sums; three get none, and no error."""
    values, rows = matrices([4, 3, 5, 2, 6])
    network = Network()
    for client in gone:
        network.leave(client, action, kind)
    sums = run("signed", network, values, rows)
    assert sorted(sums) == ([0, 2, 3, 4] if contributors else [])
    for client, got in sums.items():
        np.testing.assert_array_equal(got, exact(values, rows, contributors, client))


@pytest.mark.parametrize("num_clients", [1, 2, 3])
@pytest.mark.parametrize(
    ("protocol", "action", "kind"),
    [
        *((name, "receive", "start") for name in PROTOCOLS),
        *((name, "send", "upload") for name in PROTOCOLS),
        *((name, "receive", "sums") for name in PROTOCOLS),
        ("resilient", "send", "shares"),
        ("signed", "send", "signature"),
        ("signed", "send", "shares"),
    ],
)
def test_nobody_left_gives_no_sums(protocol, num_clients, action, kind):
    values, rows = matrices([4, 3, 5][:num_clients])
    network = Network()
    for client in range(num_clients):
        network.leave(client, action, kind)
    assert run(protocol, network, values, rows) == {}
