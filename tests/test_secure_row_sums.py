"""SecureRowSums, restarted and resilient: sums, views, dropouts, malformed messages, bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_network import Network
from scipy import stats

from jaxfed.errors import UsageError
from jaxfed.secure import masked_rows, row_sums, row_sums_resilient
from jaxfed.secure.endpoint import SERVER
from jaxfed.secure.errors import ProtocolError
from jaxfed.secure.fixed_point import FixedPoint
from jaxfed.secure.prg import Keystream

PROTOCOLS = ["restarting", "resilient"]


def matrices(sizes, num_classes=3, seed=0):
    """Z^(j) of every client and everybody's rows."""
    rng = np.random.default_rng(seed)
    stops = np.cumsum(sizes)
    rows = {
        j: slice(int(stop) - size, int(stop))
        for j, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    }
    return [rng.normal(size=(int(stops[-1]), num_classes)).astype(np.float32) for _ in sizes], rows


def parties(protocol, network, values, rows, threshold=None, claimed=()):
    num_classes = values[0].shape[1]
    endpoints = [network.endpoint(j) for j in range(len(values))]
    for endpoint in endpoints:
        endpoint.claimed.update(claimed)
    if protocol == "restarting":
        clients = {j: row_sums.Client(endpoints[j], values[j], rows) for j in range(len(values))}
        return clients, row_sums.Server(network.endpoint(SERVER), rows, num_classes)
    clients = {
        j: row_sums_resilient.Client(endpoints[j], values[j], rows) for j in range(len(values))
    }
    threshold = threshold or len(values) // 2 + 1
    server = row_sums_resilient.Server(network.endpoint(SERVER), rows, num_classes, threshold)
    return clients, server


def run(protocol, network, values, rows, **options):
    clients, server = parties(protocol, network, values, rows, **options)
    module = row_sums if protocol == "restarting" else row_sums_resilient
    return module.run(clients, server)


def exact(values, rows, contributors, client):
    """The sum in the ring: what fixed-point numbers add up to, exactly."""
    encoding = FixedPoint(len(values))
    own = [encoding.encode(values[j][rows[client]]) for j in contributors]
    return encoding.decode(np.sum(own, axis=0, dtype=np.uint64))


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


def test_masks_cancel_and_nothing_else_does():
    seeds = {(j, k): bytes([16 * j + k]) * 32 for j in range(4) for k in range(4) if j < k}
    total = np.zeros(50, np.uint64)
    for j in range(4):
        mine = {k: seeds[min(j, k), max(j, k)] for k in range(4) if k != j}
        mask = np.zeros(50, np.uint64)
        masked_rows.add_masks(mask, masked_rows.pair_masks(j, mine))
        assert mask.all()
        total += mask
    assert not total.any()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_streams_of_different_rows_do_not_overlap(sizes):
    starts = masked_rows.stream_starts(dict(enumerate(sizes)))
    ends = [starts[j] + 8 * size for j, size in enumerate(sizes)]
    assert all(start % 16 == 0 for start in starts.values())
    assert all(end <= starts[j + 1] for j, end in enumerate(ends[:-1]))


def test_masked_rows_by_hand():
    """Several blocks, entered in the middle of the streams."""
    values = np.random.default_rng(0).normal(size=(5000, 5))
    seeds = [b"a" * 32, b"b" * 32]
    masked = masked_rows.masked_rows(
        values, FixedPoint(1), [(seeds[0], 1), (seeds[1], -1)], start=48
    )
    streams = [Keystream(seed).words(6 + values.size)[6:].reshape(5000, 5) for seed in seeds]
    np.testing.assert_array_equal(masked, FixedPoint(1).encode(values) + streams[0] - streams[1])


# --- dropouts, at every point that Section 3.3 names ---------------------------------------------


def test_dropout_before_the_first_round():
    """Its labels do not count, as if it had none; its rows are nobody's."""
    for protocol in PROTOCOLS:
        values, rows = matrices([4, 3, 5, 2])
        network = Network()
        network.gone.add(1)
        sums = run(protocol, network, values, rows)
        assert sorted(sums) == [0, 2, 3]
        unlabeled = [v if j != 1 else np.zeros_like(v) for j, v in enumerate(values)]
        for client, got in sums.items():
            np.testing.assert_array_equal(got, exact(values, rows, [0, 2, 3], client))
            real = np.sum([v[rows[client]] for v in unlabeled], axis=0, dtype=np.float64)
            np.testing.assert_allclose(got, real, atol=1e-9)


@pytest.mark.parametrize("gone", [0, 2, 3])
@pytest.mark.parametrize(("action", "kind"), [("receive", "start"), ("send", "upload")])
def test_dropout_inside_restarts_without_the_client(gone, action, kind):
    """The paper: "restart the SecureRowSums step without the dropped client"."""
    values, rows = matrices([4, 3, 5, 2])
    network = Network()
    network.leave(gone, action, kind)
    sums = run("restarting", network, values, rows)
    stayed = [j for j in range(4) if j != gone]
    assert sorted(sums) == stayed
    for client, got in sums.items():
        np.testing.assert_array_equal(got, exact(values, rows, stayed, client))
    rounds = {m.kind for m in network.log if m.kind.startswith("upload")}
    assert rounds == ({"upload/1"} if gone == 0 else {"upload/0", "upload/1"})


def test_two_dropouts_two_restarts():
    values, rows = matrices([4, 3, 5, 2])
    network = Network()
    network.leave(1, "send", "upload/0")
    network.leave(3, "send", "upload/1")
    sums = run("restarting", network, values, rows)
    assert sorted(sums) == [0, 2]
    for client, got in sums.items():
        np.testing.assert_array_equal(got, exact(values, rows, [0, 2], client))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_dropout_after_changes_nothing_for_others(protocol):
    values, rows = matrices([4, 3, 5])
    network = Network()
    network.leave(1, "receive", "sums")
    sums = run(protocol, network, values, rows)
    assert sorted(sums) == [0, 2]
    for client, got in sums.items():
        np.testing.assert_array_equal(got, exact(values, rows, [0, 1, 2], client))


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


def test_resilient_needs_the_threshold():
    values, rows = matrices([2, 2, 2, 2, 2])
    network = Network()
    for client in (0, 2, 4):
        network.leave(client, "send", "upload")
    with pytest.raises(ProtocolError, match="2 uploads, 3 are needed"):
        run("resilient", network, values, rows)
    network = Network()
    for client in (0, 2, 4):
        network.leave(client, "send", "shares")
    with pytest.raises(ProtocolError, match="3 shares are needed, got 2"):
        run("resilient", network, values, rows)


@pytest.mark.parametrize("dropouts", [[], [1], [0, 3]])
def test_both_protocols_agree_bit_for_bit(dropouts):
    values, rows = matrices([4, 3, 5, 2, 6])
    results = []
    for protocol in PROTOCOLS:
        network = Network()
        for client in dropouts:
            network.leave(client, "send", "upload")
        results.append(run(protocol, network, values, rows))
    for client, sums in results[0].items():
        np.testing.assert_array_equal(sums, results[1][client])


# --- who sees what -------------------------------------------------------------------------------


def uploads(network):
    return {m.sender: np.frombuffer(m.payload, "<u8") for m in network.log if m.kind == "upload/0"}


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
        original = row_sums.Client._masked

        def shifted(client, owner):
            masked = original(client, owner)
            own = client._own
            if own != owner:  # the pair's mask moved: here by +shift, at the owner by -shift
                return masked + shifts[own, owner]
            return masked - sum(shifts[j, owner] for j in range(3) if j != owner)

        network = Network()
        with monkeypatch.context() as patch:
            patch.setattr(row_sums.Client, "_masked", shifted)
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
        assert kinds <= {"start", "sums/0", "mask_keys", "survivors/0"}
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
    row_sums.run(clients, server)
    sent = sum(len(m.payload) for m in network.log if m.kind == "upload/1")
    assert sent == row_sums.message_bytes([4, 5], 3)["upload"]
    would_be = np.zeros((3, 3), np.uint64)
    for client in (0, 2):
        clients[client]._starts[1] = 1 << 20
        would_be += clients[client]._masked(1)
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
            same = row_sums_resilient.Client._owner_seed
            seed = bytes(32)

            def uncovered(client, contributor, owner):
                same(client, contributor, owner)
                return seed  # known to the server

            patch.setattr(row_sums_resilient.Client, "_owner_seed", uncovered)
        row_sums_resilient.run(clients, server)
    survivors = [0, 2, 3]
    left = np.zeros((3, 3), np.uint64)
    starts = masked_rows.stream_starts(row_sums.num_entries(rows, range(4), 3))
    for survivor in survivors:
        words = uploads(network)[survivor].reshape(-1, 3)
        before = sum(rows[j].stop - rows[j].start for j in range(1) if j != survivor)
        part = words[before : before + 3].copy()
        secret = row_sums_resilient.agreed_seed(server._secret(1, 32), server._keys[survivor], 0)
        masks = [(server._secret(survivor, 32), 1), *masked_rows.pair_masks(survivor, {1: secret})]
        masked_rows.add_masks(part, masked_rows.removed(masks), start=starts[1])
        if not covered:
            masked_rows.add_masks(part, [(bytes(32), -1)])
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
    row_sums_resilient.run(clients, server)
    for holder, shares in server._shares.items():
        for client, share in enumerate(shares):
            assert share == clients[holder]._held[client][1 if client == 1 else 0]


def test_streams_for_owners_are_never_the_same_twice():
    """j on R_m and m on R_j: two seeds, both known to both."""
    values, rows = matrices([4, 3, 5])
    clients, server = parties("resilient", Network(), values, rows)
    row_sums_resilient.run(clients, server)
    seeds = {
        (j, contributor, owner): clients[j]._owner_seed(contributor, owner)
        for contributor in range(3)
        for owner in range(3)
        if contributor != owner
        for j in (contributor, owner)
    }
    assert len(set(seeds.values())) == 6
    assert all(seeds[c, c, o] == seeds[o, c, o] for (j, c, o) in seeds if j == c)


# --- rounds and messages -------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_round_never_comes_again(protocol):
    """The same masks on two sets of contributions would show their difference."""
    values, rows = matrices([4, 3, 5])
    network = Network()
    with pytest.raises(ProtocolError, match="used before"):
        run(protocol, network, values, rows, claimed=["row sums/0"])
    assert not uploads(network)


def test_rounds_have_masks_of_their_own():
    values, rows = matrices([4, 3, 5])
    sent = []
    for first_round in (0, 1):
        network = Network()
        clients, server = parties("restarting", network, values, rows)
        row_sums.run(clients, server, first_round=first_round)
        sent.append([m.payload for m in network.log if m.kind.startswith("upload")])
    words = [np.frombuffer(b"".join(payloads), "<u8") for payloads in sent]
    assert not np.any(words[0] == words[1])


def test_one_answer_to_survivors_a_round():
    """A second request could ask for the other secret of a client."""
    values, rows = matrices([4, 3, 5])
    clients, server = parties("resilient", Network(), values, rows)
    row_sums_resilient.run(clients, server)
    server.ask(0)
    with pytest.raises(ProtocolError, match="used before"):
        clients[0].reveal()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("sizes", [[4, 3, 5], [1, 0, 7, 2], [6]])
def test_bytes_are_as_counted(protocol, sizes):
    values, rows = matrices(sizes, num_classes=4)
    network = Network()
    run(protocol, network, values, rows)
    if protocol == "restarting":
        expected = row_sums.message_bytes(sizes, 4)
    else:
        expected = row_sums_resilient.message_bytes(sizes, 4, range(len(sizes)))
    recorded = network.bytes_by_kind()
    assert {kind: recorded.get(kind, 0) for kind in expected} == expected
    assert recorded.keys() <= expected.keys()


def test_bytes_are_as_counted_with_a_dropout():
    values, rows = matrices([4, 3, 5, 2])
    network = Network()
    network.leave(1, "send", "upload")
    run("resilient", network, values, rows)
    expected = row_sums_resilient.message_bytes([4, 3, 5, 2], 3, [0, 2, 3])
    assert network.bytes_by_kind() == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("damage", ["cut", "longer", "empty"])
def test_malformed_messages_give_an_error_and_no_sums(protocol, damage):
    """Every message of the run in turn."""
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
        with pytest.raises(ProtocolError, match=r"bytes|upload"):
            run(protocol, damaged, values, rows)


def test_random_messages_never_pass_unnoticed_or_crash():
    """Starts, survivors and uploads of random bytes: one line of ValueError."""
    rng = np.random.default_rng(0)
    values, rows = matrices([2, 1, 2])
    for trial in range(9000):
        payload = rng.bytes(int(rng.integers(0, 40)))
        network = Network()
        kind = ("start", "upload/0", "sums/0")[trial % 3]
        network.tamper = lambda m, kind=kind, payload=payload: (
            payload if m.kind == kind else m.payload
        )
        with pytest.raises(ProtocolError) as caught:
            run("restarting", network, values, rows)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        row_sums.start_message(0, [1, 2]),  # without the receiver
        row_sums.start_message(0, [0, 7]),  # a client nobody knows
        row_sums.start_message(0, [0, 0, 1]),  # twice the same
        row_sums.start_message(0, [1, 0]),  # another order
    ],
)
def test_wrong_participants_are_refused(message):
    values, rows = matrices([2, 1, 2])
    network = Network()
    network.tamper = lambda m: message if m.kind == "start" else m.payload
    with pytest.raises(ProtocolError, match=r"participants|agreed"):
        run("restarting", network, values, rows)
    assert not uploads(network)


@pytest.mark.parametrize("survivors", [[1, 2], [0], [0, 9]])
def test_wrong_survivors_are_refused(survivors):
    values, rows = matrices([2, 1, 2])
    network = Network()
    message = row_sums.start_message(0, survivors)
    network.tamper = lambda m: message if m.kind == "survivors/0" else m.payload
    with pytest.raises(ProtocolError, match="survivors"):
        run("resilient", network, values, rows)
    assert not [m for m in network.log if m.kind.startswith("shares")]


def test_small_order_keys_are_refused():
    values, rows = matrices([2, 1, 2])
    network = Network()
    network.tamper = lambda m: bytes(32) if m.kind == "mask_key" else m.payload
    with pytest.raises(ProtocolError):
        run("resilient", network, values, rows)


@pytest.mark.parametrize("threshold", [1, 5])
def test_threshold_must_be_a_majority(threshold):
    values, rows = matrices([2, 1, 2, 2])
    with pytest.raises(UsageError, match=f"threshold={threshold}"):
        run("resilient", Network(), values, rows, threshold=threshold)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e6])
def test_values_out_of_range_are_not_sent(protocol, value):
    values, rows = matrices([2, 1, 2])
    values[1][0, 0] = value
    network = Network()
    with pytest.raises(UsageError, match="not finite or reaches"):
        run(protocol, network, values, rows)
    assert 1 not in uploads(network)
