"""Who sees what of SecureRowSums."""

import numpy as np
import pytest
from recording_network import Network
from row_sums_parties import PROTOCOLS, exact, matrices, parties, run, uploads
from scipy import stats

from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums import double_masks
from jaxfed.secure.row_sums import masked as row_sums
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.phases import InProcess


def uniform_words(words):
    counts = np.bincount(np.ascontiguousarray(words).view(np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_server_receives_noise(protocol):
    """Uploads of zeros, and the sums that it hands on."""
    values, rows = matrices([40, 30, 50], num_classes=5)
    network = Network()
    run(protocol, network, [np.zeros_like(v) for v in values], rows)
    for words in uploads(network).values():
        assert uniform_words(words) > 1e-6
    for message in network.log:
        if message.kind.startswith("sums"):
            assert uniform_words(np.frombuffer(message.payload, "<u8")) > 1e-6


def test_server_view_is_the_same_for_unrelated_inputs(monkeypatch):
    """Coupling: any other contributions look the same under masks shifted by their difference.

    On client m's rows the others' p - 1 uploads carry masks M_j with the one constraint that M_m, which
    is never sent, closes the sum. Shift the mask of each pair (j, m) by Z_j - Z'_j on R_m: a bijection
    of masks, and every upload and sum is bit for bit the same.
    """
    values, rows = matrices([4, 3, 5])
    others = matrices([4, 3, 5], seed=9)[0]
    encoding = FixedPoint(3)

    def view(contributions, shifts):
        original = row_sums.masked_rows
        own = iter(range(3))  # clients upload one after another

        def shifted(*arguments):
            masked, client = original(*arguments), next(own)
            for owner in range(3):  # the pair's mask moved: here by +shift, at the owner by -shift
                for j in range(3):
                    if j != owner and client in (j, owner):
                        moved = shifts[j, owner]
                        masked[rows[owner]] += moved if client == j else -moved
            return masked

        network = Network()
        with monkeypatch.context() as patch:
            patch.setattr(row_sums, "masked_rows", shifted)
            sums = run("restarting", network, contributions, rows)
        return [m.payload for m in network.log], sums

    zero = {(j, m): np.uint64(0) for j in range(3) for m in range(3)}
    difference = {
        (j, m): encoding.encode(values[j][rows[m]]) - encoding.encode(others[j][rows[m]])
        for j in range(3)
        for m in range(3)
    }
    ours, sums = view(values, zero)
    theirs, other_sums = view(others, difference)
    assert ours == theirs
    for client in range(3):
        np.testing.assert_array_equal(sums[client], exact(values, rows, range(3), client))
        np.testing.assert_array_equal(other_sums[client], exact(others, rows, range(3), client))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_get_their_rows_only(protocol):
    """From the server: nothing that holds numbers but the sums of the own rows."""
    values, rows = matrices([4, 3, 5])
    network = Network()
    run(protocol, network, values, rows)
    for client, size in enumerate([4, 3, 5]):
        kinds = {m.kind for m in network.seen_by(client) if m.sender == SERVER}
        assert kinds <= {"start", "sums/0", "mask_keys", "survivors/0", "signatures/0"}
        (message,) = [m for m in network.seen_by(client) if m.kind == "sums/0"]
        assert len(message.payload) == 8 * size * 3
        between = {m.kind for m in network.seen_by(client) if m.sender != SERVER}
        assert between <= {"secrets/0"}


def test_client_view_depends_on_the_sum_only():
    """Other contributions with the same sum on R_0, same masks elsewhere: client 0 sees the same."""
    values, rows = matrices([4, 3, 5])
    values = [np.round(v * 64) / 64 for v in values]  # so that shifts are exact
    moved = [v.copy() for v in values]
    moved[1][rows[0]] += 0.5
    moved[2][rows[0]] -= 0.5
    views = []
    for contributions in (values, moved):
        network = Network()
        run("restarting", network, contributions, rows)
        views.append([m.payload for m in network.seen_by(0)])
    assert views[0] == views[1]


def test_server_never_gets_both_secrets_of_a_client():
    values, rows = matrices([4, 3, 5, 2])
    network = Network()
    network.leave(1, "send", "upload")
    clients, server = parties("resilient", network, values, rows)
    double_masks.run(InProcess(clients), server)
    for holder, shares in server._shares.items():
        for client, share in shares.items():
            assert share == clients[holder]._held[client][1 if client == 1 else 0]
