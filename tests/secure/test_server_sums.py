"""Sums that the server reads, means of classes and votes: exact, noise until all are in, and who leaves."""

from types import SimpleNamespace

import message_sizes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_network import Network
from server_owned_sums import RESILIENT, assert_noise_of_three, recorded_uploads

from jaxfed.errors import ProtocolError
from jaxfed.secure import class_means, vote_sums
from jaxfed.secure.class_means import Shown
from jaxfed.secure.row_sums import double_masks, masked
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.phases import InProcess


class Means:
    """Mean prototypes: (center, number of clients) of each class, none of one client alone."""

    nothing = np.zeros((4, 7))

    @staticmethod
    def parts(num_clients, num_classes=4, dim=6, share=1.0, seed=0):
        rng, parts = np.random.default_rng(seed), {}
        for client in range(num_clients):
            is_present = rng.random(num_classes) < share
            center = rng.normal(size=(num_classes, dim)).astype(np.float32) * is_present[:, None]
            parts[client] = Shown(center, is_present)
        return parts

    @staticmethod
    def found(session, parts, **options):
        return np.column_stack(class_means.class_means(session, parts, **options))

    @staticmethod
    def expected(parts):
        center = np.stack([part.center for part in parts.values()]).astype(np.float64)
        count = np.sum([part.is_present for part in parts.values()], axis=0)
        count = np.where(count >= 2, count, 0)
        mean = center.sum(axis=0) / np.maximum(count, 1)[:, None]
        return np.column_stack([np.where(count[:, None] > 0, mean, 0), count])


class Votes:
    """One-hot votes, some of them none."""

    nothing = None

    @staticmethod
    def parts(num_clients, num_examples=20, num_classes=3, share=1.0, seed=0):
        rng = np.random.default_rng(seed)
        votes = rng.integers(-1, num_classes, (num_clients, num_examples))
        return dict(enumerate(votes[..., None] == np.arange(num_classes)))

    @staticmethod
    def found(session, parts, **options):
        return vote_sums.vote_histogram(session, parts, **options)

    @staticmethod
    def expected(parts):
        return np.sum(list(parts.values()), axis=0)


USES = pytest.mark.parametrize("use", [Means, Votes])


def assert_same(found, expected):
    if expected is None:
        assert found is None
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=2**-41 + 1e-15)


@USES
@given(st.integers(2, 6), st.booleans(), st.integers(0, 2**31))
def test_sums_are_those_in_the_clear(use, num_clients, is_resilient, seed):
    parts = use.parts(num_clients, share=0.7, seed=seed)
    found = use.found(Session(num_clients), parts, is_resilient=is_resilient)
    assert_same(found, use.expected(parts))


@USES
@RESILIENT
def test_one_client_alone_has_no_sum(use, is_resilient):
    """Nor the last one that stays: it would be its own part."""
    assert_same(use.found(Session(1), use.parts(1), is_resilient=is_resilient), use.nothing)
    presence = Presence()
    for client in range(2):
        presence.lose_when(client, "send", "upload")
    session = Session(3, presence=presence)
    assert_same(use.found(session, use.parts(3), is_resilient=is_resilient), use.nothing)


@USES
@pytest.mark.parametrize(
    ("is_resilient", "kind"),  # single masks have no survivors
    [
        *((False, kind) for kind in ("invite", "start", "upload")),
        *((True, kind) for kind in ("invite", "start", "upload", "survivors")),
    ],
)
def test_who_leaves(use, is_resilient, kind):
    """Before its last upload is through it does not count; after it, under double masks, it does."""
    parts, presence = use.parts(5), Presence()
    later = use is Means and kind in ("upload", "survivors")  # of the second sum
    presence.lose_when(2, "send" if kind == "upload" else "receive", kind, after=int(later))
    found = use.found(Session(5, presence=presence), parts, is_resilient=is_resilient)
    if kind != "survivors":
        del parts[2]
    assert_same(found, use.expected(parts))


@USES
@RESILIENT
def test_what_the_server_receives_of_one_client_is_noise(use, is_resilient, monkeypatch):
    """Parts that are all alike, so that nothing else is random."""
    same = {
        Means: Shown(np.zeros((10, 200)), np.ones(10, bool)),
        Votes: np.tile([True, False, False], (20_000, 1)),
    }[use]
    session = Session(3)
    uploads = recorded_uploads(session, monkeypatch)
    use.found(session, dict.fromkeys(range(3), same), is_resilient=is_resilient)
    assert_noise_of_three(uploads[-3:])


@USES
def test_bytes_are_as_counted(use):
    session = Session(4)
    sizes = {Means: {"num_classes": 10, "dim": 32}, Votes: {"num_examples": 100, "num_classes": 10}}
    counted = {
        Means: message_sizes.class_means(4, 10, 32),
        Votes: message_sizes.votes(4, 100, 10, is_resilient=False),
    }[use]
    before = session.communication()
    use.found(session, use.parts(4, **sizes[use]), is_resilient=False)
    after = session.communication()
    for kind, num_bytes in counted.items():
        ways = (after.upload, before.upload), (after.download, before.download)
        assert num_bytes == sum(now.get(kind, 0) - then.get(kind, 0) for now, then in ways), kind


# --- means of classes ----------------------------------------------------------------------------


@RESILIENT
def test_what_one_client_alone_shows_is_in_no_sum(is_resilient, monkeypatch):
    """Nor are coordinates of what a client does not show: the sums that the server reads have zeros."""
    parts = {j: Shown(np.full((3, 2), j + 1.0), np.array([True, j == 0, j > 0])) for j in range(3)}
    read, original = [], class_means.server_sums

    def reading(*args, **kwargs):
        read.append(original(*args, **kwargs))
        return read[-1]

    monkeypatch.setattr(class_means, "server_sums", reading)
    class_means.class_means(Session(3), parts, is_resilient=is_resilient)
    np.testing.assert_allclose(read[0][:, 0], [3, 1, 2], atol=2**-30)
    np.testing.assert_allclose(read[1], [[6, 6, 3], [0, 0, 0], [5, 5, 2]], atol=2**-30)


@RESILIENT
def test_a_class_of_one_that_is_left_between_the_sums_has_no_mean(is_resilient):
    """The server has read this one's prototype, and throws it away."""
    there = {0: [True, True], 1: [False, True], 2: [True, True]}
    parts = {j: Shown(np.ones((2, 3)), np.array(own)) for j, own in there.items()}
    presence = Presence()
    presence.lose_when(2, "receive", "classes")
    means = class_means.class_means(Session(3, presence=presence), parts, is_resilient=is_resilient)
    np.testing.assert_array_equal(means.contributors, [0, 2])
    np.testing.assert_allclose(means.center, [[0, 0, 0], [1, 1, 1]], atol=2**-40)


# --- votes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_terms", [1, 2, 7, 1000, 2**31, 2**63 - 1])
def test_a_modulus_of_one_more_than_the_clients_is_enough_and_needed(num_terms):
    """Sums in which every count is the largest: no digit carries; in a smaller one it would."""
    size = vote_sums.slots(num_terms)
    assert (num_terms + 1) ** size <= 2**64 < (num_terms + 1) ** (size + 1)
    count = 2 * size + 1
    ones = vote_sums.pack_marks(np.ones(count, bool), num_terms)
    assert ones.size == vote_sums.num_elements(count, num_terms) == 3
    largest = ones * np.uint64(num_terms)
    np.testing.assert_array_equal(
        vote_sums.unpack_counts(largest, count, num_terms), np.full(count, num_terms)
    )
    if num_terms > 1:  # modulo K a vote of all is a vote of nobody, and of the next class
        fewer = num_terms - 1
        everybody = vote_sums.pack_marks(np.ones(1, bool), fewer) * np.uint64(num_terms)
        with pytest.raises(ProtocolError, match="no votes have"):
            vote_sums.unpack_counts(everybody, 1, fewer)


# --- the parties of any such sum -----------------------------------------------------------------

RNG = np.random.default_rng(0)
PARTS = {  # of three clients
    "numbers": RNG.normal(size=(3, 4, 6)),
    "votes": np.stack(
        [vote_sums.pack_marks(marks, 3)[:, None] for marks in RNG.integers(0, 2, (3, 20, 3))]
    ),
}


def rows_of(num_rows, num_clients):
    return {SERVER: slice(0, num_rows), **dict.fromkeys(range(num_clients), slice(0, 0))}


@RESILIENT
def test_a_round_of_one_is_refused_by_the_client(is_resilient):
    """Whatever the server says of the others."""
    part, session = PARTS["numbers"][0], Session(2)
    rows, module = rows_of(len(part), 2), double_masks if is_resilient else masked
    client = module.Client(session.endpoints[0], part, rows)
    server = module.Server(session.endpoints[SERVER], rows, part.shape[1])
    server.start(0, [0])
    server.invite(0)
    with pytest.raises(ProtocolError, match="too few for a sum"):
        client.announce() if is_resilient else client.upload()


def view_of_the_server(parts, monkeypatch, *, is_moved):
    """Of three clients; masks of the first two may be shifted by what sets their parts apart."""
    network, original = Network(), masked.masked_rows
    rows = rows_of(len(parts[0]), 3)
    clients = {j: masked.Client(network.endpoint(j), parts[j], rows) for j in range(3)}
    server = masked.Server(network.endpoint(SERVER), rows, parts[0].shape[1])
    turns = iter(range(3))

    def shifted(values, encoding, masks):
        result, client = original(values, encoding, masks), next(turns)
        if is_moved and client < 2:  # a shift of the pair's mask, up here and down there
            mine, theirs = (encoding.encode(parts[j]) for j in (client, 1 - client))
            result += theirs - mine
        return result

    with monkeypatch.context() as patch:
        patch.setattr(masked, "masked_rows", shifted)
        masked.run(InProcess(clients), server)
    return SimpleNamespace(messages=[m.payload for m in network.log], sums=server.own_sums())


@pytest.mark.parametrize("kind", PARTS)
def test_the_view_of_the_server_depends_on_the_sum_only(kind, monkeypatch):
    """Clients that swap their parts, under masks shifted by the difference, look the same."""
    parts = PARTS[kind]
    ours = view_of_the_server(parts, monkeypatch, is_moved=False)
    theirs = view_of_the_server(parts[[1, 0, 2]], monkeypatch, is_moved=True)
    assert ours.messages == theirs.messages
    np.testing.assert_array_equal(ours.sums, theirs.sums)
    assert not np.array_equal(parts[0], parts[1])
