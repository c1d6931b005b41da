"""Sums among k neighbors: exact whoever leaves, with bytes that do not grow, and uploads that are noise."""

import logging
from collections import Counter

import message_sizes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfed.secure import class_means, vote_sums
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.neighborhoods import Promise, neighborhood
from jaxfed.secure.session.parties import Session

WEAK = Promise(0.0, 0.25, 4, 4)
STAGES = [
    *(("receive", kind) for kind in ("invite", "roster", "start", "mask_keys", "partners")),
    *(("receive", kind) for kind in ("secrets", "survivors", "sums")),
    *(("send", kind) for kind in ("hello", "mask_key", "secrets", "upload", "shares")),
]


def marks_of(number, seed=0):
    return dict(enumerate(np.random.default_rng(seed).integers(0, 2, (number, 7, 3))))


def sparse_session(number, presence=None, promise=WEAK, seed=None):
    random = {} if seed is None else {"random_bytes": np.random.default_rng(seed).bytes}
    size = neighborhood(number, 0, promise).size
    assert size < number - 1
    return Session(number, mask_partners=size, promise=promise, presence=presence, **random)


def leaving(plan):
    presence = Presence()
    for client, (action, kind), after in plan:
        presence.lose_when(client, action, kind, after=after)
    return presence


@pytest.mark.parametrize(("action", "kind"), STAGES)
def test_nobody_uploads_twice_whoever_leaves(action, kind):
    """What arrived counts, and everybody who stays is in the sum."""
    marks = marks_of(24)
    session = sparse_session(24, leaving([(c, (action, kind), 0) for c in (3, 11)]))
    sums = vote_sums.vote_histogram(session, marks, is_resilient=True)
    counted = session.contributors
    np.testing.assert_array_equal(sums, sum(marks[j] for j in counted))
    is_late = kind in ("survivors", "shares", "sums")  # server-owned rows: nobody reads "sums"
    assert set(range(24)) - set(counted) == (set() if is_late else {3, 11})
    uploads = [route for route in session.channel.volumes if route.kind.startswith("upload")]
    assert len(uploads) == len({route.sender for route in uploads})


def check_any_dropouts(number, data):
    """The sum over exactly the contributors, entry for entry; or no sum at all, if too many left."""
    gone = data.draw(st.lists(st.integers(0, number - 1), unique=True, max_size=number // 3))
    plan = [(c, data.draw(st.sampled_from(STAGES)), data.draw(st.integers(0, 2))) for c in gone]
    marks = marks_of(number)
    session = sparse_session(number, leaving(plan), seed=data.draw(st.integers(0, 2**31)))
    sums = vote_sums.vote_histogram(session, marks, is_resilient=True)
    if sums is not None:
        assert set(range(number)) - set(gone) <= set(session.contributors)
        np.testing.assert_array_equal(sums, sum(marks[j] for j in session.contributors))
    else:
        assert gone


@settings(max_examples=6, deadline=None)
@given(st.integers(16, 30), st.data())
def test_sum_equals_the_plaintext_under_any_dropouts(number, data):
    check_any_dropouts(number, data)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(16, 60), st.data())
def test_sum_equals_the_plaintext_under_many_dropouts(number, data):
    check_any_dropouts(number, data)


def test_means_of_classes():
    """Two sums in one session; a client that left after the first is gone in the second."""
    rng = np.random.default_rng(0)
    shown = {j: class_means.Shown(rng.normal(size=(2, 3)), rng.random(2) < 0.9) for j in range(20)}
    session = sparse_session(20, leaving([(5, ("receive", "classes"), 0)]))
    means = class_means.class_means(session, shown, is_resilient=True)
    stay = [own for j, own in shown.items() if j != 5]
    count = sum(own.is_present for own in stay)
    center = sum(np.where(own.is_present[:, None], own.center, 0) for own in stay) / count[:, None]
    np.testing.assert_array_equal(means.contributors, count)
    np.testing.assert_allclose(means.center, center, atol=1e-9)


def traffic(session, client):
    """Payload bytes by kind that one client sends and receives."""
    total = Counter()
    for route, volume in session.channel.volumes.items():
        if client in (route.sender, route.receiver):
            total[route.kind.partition("/")[0]] += volume.payload_bytes
    return total


@pytest.mark.parametrize("numbers", [(40, 50), pytest.param((200, 400), marks=pytest.mark.slow)])
def test_bytes_of_a_client_do_not_grow(numbers):
    """Equal for the same k, payload by payload the cost function's, and for every client."""
    size, whole = 36, []
    promise = Promise(0.0, 0.1, 8, 8)
    for number in numbers:
        marks = {j: own.astype(np.int64) for j, own in marks_of(number).items()}
        session = Session(number, mask_partners=size, promise=promise)
        sums = server_sums.server_sums(session, marks, is_resilient=True)
        np.testing.assert_array_equal(sums, sum(marks.values()))
        expected = message_sizes.of_neighbor(size, others_rows=7, num_classes=3)
        for client in (0, 17, number - 1):
            counted = traffic(session, client)
            assert counted == {**expected, "invite": 0, "hello": 32, "roster": 32 + 36 * (size + 1)}
        volumes = session.channel.volumes.items()
        whole.append(sum(v.num_bytes for r, v in volumes if 0 in (r.sender, r.receiver)))
    assert whole[0] == whole[1]


@pytest.mark.parametrize("mask_partners", [0, 11, 12, 100])
def test_complete_graph_has_the_messages_of_today(mask_partners):
    """From k = n - 1 on: the same kinds, routes and bytes as without the option."""
    volumes = []
    for given_k in (0, mask_partners):
        session = Session(12, mask_partners=given_k)
        vote_sums.vote_histogram(session, marks_of(12), is_resilient=True)
        volumes.append(dict(session.channel.volumes))
        assert session.graph is None
    assert volumes[0] == volumes[1]


@pytest.mark.parametrize(("number", "who"), [(23, "client"), (24, "nobody is left")])
def test_a_sum_is_given_up_where_too_many_leave(caplog, number, who):
    """One warning, no sum, and the session goes on."""
    session = sparse_session(24, leaving([(c, ("send", "upload"), 0) for c in range(number)]))
    with caplog.at_level(logging.WARNING):
        assert vote_sums.vote_histogram(session, marks_of(24), is_resilient=True) is None
    assert f"a sum of round 0 is given up: {who}" in caplog.text
    assert session.contributors == []


def test_a_liar_is_lost_and_the_sum_is_there(caplog):
    """One wrong share: the secret fits without it."""
    session = sparse_session(24)
    marks = marks_of(24)
    end = session.endpoints[2]
    send = end.send

    def lying(receiver, kind, payload):
        send(receiver, kind, bytes(66) * (len(payload) // 66) if "shares" in kind else payload)

    end.send = lying
    np.testing.assert_array_equal(
        vote_sums.vote_histogram(session, marks, is_resilient=True), sum(marks.values())
    )
    assert session.presence.gone == {2}
    assert "client 2 is lost, its shares do not fit the others'" in caplog.text
