"""Who sees what of SecureRowSums."""

import message_sizes
import numpy as np
import pytest
from recording_network import Network
from row_sums_parties import PROTOCOLS, exact, matrices, parties, run, uploads
from scipy import stats

from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.row_sums import double_masks, mask_streams
from jaxfed.secure.row_sums import masked as row_sums
from jaxfed.secure.row_sums.participants import ParticipatingRows
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


def test_rows_of_a_dropped_client_are_left_out():
    """Were they uploaded, the masks of those who stay would cancel there: the server would read them."""
    values, rows = matrices([4, 3, 5])
    network = Network()
    network.leave(1, "send", "upload")
    clients, server = parties("restarting", network, values, rows)
    row_sums.run(InProcess(clients), server)
    sent = sum(len(m.payload) for m in network.log if m.kind == "upload/1")
    assert sent == message_sizes.single_masks([4, 5], 3)["upload"]
    would_be = np.zeros((3, 3), np.uint64)
    places = ParticipatingRows(rows, [0, 2], 3).agreement
    for client in (0, 2):  # under the masks of round 1, at any place of the streams
        seed = network.endpoint(client).pair_seed(2 - client, f"row sums/1/{places}")
        masks = mask_streams.pair_masks(client, {2 - client: seed})
        would_be += mask_streams.masked_rows(values[client][rows[1]], FixedPoint(2), masks)
    bare = values[0][rows[1]].astype(np.float64) + values[2][rows[1]]
    np.testing.assert_allclose(FixedPoint(2).decode(would_be), bare, atol=1e-9)


def dropped_rows_after_unmasking(covered):
    """What is left on a dropped client's rows when the server has taken off all it can."""
    values, rows = matrices([4, 3, 5, 2])
    network = Network()
    network.leave(1, "send", "upload")
    clients, server = parties("resilient", network, values, rows)
    with pytest.MonkeyPatch.context() as patch:
        if not covered:
            same = double_masks.Client._owner_seed
            seed = bytes(32)

            def uncovered(client, contributor, owner):
                same(client, contributor, owner)
                return seed  # known to the server

            patch.setattr(double_masks.Client, "_owner_seed", uncovered)
        double_masks.run(InProcess(clients), server)
    survivors = [0, 2, 3]
    left = np.zeros((3, 3), np.uint64)
    dropped = double_masks.key_pair(server._secret(1, False, set()))
    for survivor in survivors:
        words = uploads(network)[survivor].reshape(-1, 3)
        before = rows[1].start - (4 if survivor == 0 else 0)
        part = words[before : before + 3].copy()
        secret = double_masks.agreed_seed(dropped, server._keys[survivor], 0)
        masks = [
            (server._secret(survivor, True, set()), 1),
            *mask_streams.pair_masks(survivor, {1: secret}),
        ]
        mask_streams.add_masks(part, mask_streams.removed(masks), first=3 * rows[1].start)
        if not covered:
            mask_streams.add_masks(part, [(bytes(32), -1)])
        left += part
    expected = np.sum([values[j][rows[1]].astype(np.float64) for j in survivors], axis=0)
    return np.max(np.abs(FixedPoint(4).decode(left) - expected))


def test_plain_double_masking_would_bare_a_dropped_clients_rows():
    """The server, with all that it learns, reads Z[R_d]; the stream for the owner prevents it."""
    assert dropped_rows_after_unmasking(covered=False) < 1e-9
    assert dropped_rows_after_unmasking(covered=True) > 1


def test_server_never_gets_both_secrets_of_a_client():
    values, rows = matrices([4, 3, 5, 2])
    network = Network()
    network.leave(1, "send", "upload")
    clients, server = parties("resilient", network, values, rows)
    double_masks.run(InProcess(clients), server)
    for holder, shares in server._shares.items():
        for client, share in shares.items():
            assert share == clients[holder]._held[client][1 if client == 1 else 0]
