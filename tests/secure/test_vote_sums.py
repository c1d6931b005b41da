"""Votes by masked sums: what the server gets, what it sees, and who leaves."""

import message_sizes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_owned_sums import (
    RESILIENT,
    assert_noise_of_three,
    recorded_uploads,
)

from jaxfed.errors import ProtocolError
from jaxfed.secure import vote_sums
from jaxfed.secure.primitives import packed_counts
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.parties import Session


def marks_of(num_clients, num_examples=20, num_classes=3, seed=0):
    """One-hot votes, some of them none."""
    votes = np.random.default_rng(seed).integers(-1, num_classes, (num_clients, num_examples))
    return dict(enumerate(votes[..., None] == np.arange(num_classes)))


@given(st.integers(2, 6), st.booleans(), st.integers(0, 2**31))
def test_the_histogram_is_the_sum_in_the_clear(num_clients, is_resilient, seed):
    marks = marks_of(num_clients, seed=seed)
    ours = vote_sums.vote_histogram(Session(num_clients), marks, is_resilient=is_resilient)
    np.testing.assert_array_equal(ours, np.sum(list(marks.values()), axis=0))


@pytest.mark.parametrize("num_terms", [1, 2, 3, 5, 7, 100, 1000, 2**31, 2**63 - 1])
def test_a_modulus_of_one_more_than_the_clients_is_enough_and_needed(num_terms):
    """Sums in which every count is the largest: no digit carries; in a smaller one it would."""
    size = packed_counts.slots(num_terms)
    assert (num_terms + 1) ** size <= 2**64 < (num_terms + 1) ** (size + 1)
    count = 2 * size + 1
    ones = packed_counts.pack(np.ones(count, bool), num_terms)
    assert ones.size == packed_counts.num_elements(count, num_terms) == 3
    largest = ones * np.uint64(num_terms)
    np.testing.assert_array_equal(
        packed_counts.unpack(largest, count, num_terms), np.full(count, num_terms)
    )
    if num_terms > 1:  # modulo K a vote of all is a vote of nobody, and of the next class
        fewer = num_terms - 1
        everybody = packed_counts.pack(np.ones(1, bool), fewer) * np.uint64(num_terms)
        with pytest.raises(ProtocolError, match="no votes have"):
            packed_counts.unpack(everybody, 1, fewer)


@RESILIENT
def test_one_client_alone_has_no_sum(is_resilient):
    ours = vote_sums.vote_histogram(Session(1), marks_of(1), is_resilient=is_resilient)
    assert ours is None


@RESILIENT
def test_what_the_server_receives_of_one_client_is_noise(is_resilient, monkeypatch):
    """Votes that all say the same, so that nothing else is random."""
    same = {j: np.tile([True, False, False], (20_000, 1)) for j in range(3)}
    session = Session(3)
    uploads = recorded_uploads(session, monkeypatch)
    vote_sums.vote_histogram(session, same, is_resilient=is_resilient)
    assert_noise_of_three(uploads)
    opened = packed_counts.pack(same[0], 3) * np.uint64(3)
    assert np.array_equal(sum(uploads), opened) != is_resilient  # own masks go with shares alone


@RESILIENT
@pytest.mark.parametrize("kind", ["invite", "start", "upload"])
def test_who_leaves_counts_no_more(is_resilient, kind):
    """At any time before its upload is through; of the others all is as it was."""
    marks, presence = marks_of(5), Presence()
    presence.lose_when(2, "send" if kind == "upload" else "receive", kind)
    session = Session(5, presence=presence)
    ours = vote_sums.vote_histogram(session, marks, is_resilient=is_resilient)
    expected = np.sum([own for client, own in marks.items() if client != 2], axis=0)
    np.testing.assert_array_equal(ours, expected)


def test_who_leaves_after_its_upload_counts_with_double_masks():
    marks, presence = marks_of(5), Presence()
    presence.lose_when(2, "receive", "survivors")
    session = Session(5, presence=presence)
    ours = vote_sums.vote_histogram(session, marks, is_resilient=True)
    np.testing.assert_array_equal(ours, np.sum(list(marks.values()), axis=0))


@RESILIENT
def test_all_but_one_may_leave(is_resilient):
    """The last one's sum would be its votes."""
    presence = Presence()
    for client in range(2):
        presence.lose_when(client, "send", "upload")
    session = Session(3, presence=presence)
    assert vote_sums.vote_histogram(session, marks_of(3), is_resilient=is_resilient) is None


@RESILIENT
def test_bytes_are_as_counted(is_resilient):
    session, marks = Session(4), marks_of(4, num_examples=100, num_classes=10)
    before = session.communication()
    vote_sums.vote_histogram(session, marks, is_resilient=is_resilient)
    after = session.communication()
    counted = message_sizes.votes(4, 100, 10, is_resilient=is_resilient)
    assert counted["upload"] == 8 * 4 * -(-1000 // packed_counts.slots(4))
    for kind, num_bytes in counted.items():
        ways = (after.upload, before.upload), (after.download, before.download)
        sent = [now.get(kind, 0) - then.get(kind, 0) for now, then in ways]
        assert num_bytes == max(sent), kind
