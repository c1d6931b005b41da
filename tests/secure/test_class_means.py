"""Mean prototypes by masked sums: what the server gets, what it sees, and who leaves."""

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

from jaxfed.secure import class_means
from jaxfed.secure.class_means import Shown
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.parties import Session


def shown(num_clients, num_classes=4, dim=6, share=0.7, seed=0):
    rng = np.random.default_rng(seed)
    parts = {}
    for client in range(num_clients):
        is_there = rng.random(num_classes) < share
        center = rng.normal(size=(num_classes, dim)).astype(np.float32) * is_there[:, None]
        parts[client] = Shown(center, is_there)
    return parts


def expected(parts):
    """The mean of each class over who shows it, in double precision; none of one client alone."""
    center = np.stack([part.center for part in parts.values()]).astype(np.float64)
    count = np.sum([part.is_there for part in parts.values()], axis=0)
    count = np.where(count >= 2, count, 0)
    mean = center.sum(axis=0) / np.maximum(count, 1)[:, None]
    return np.where(count[:, None] > 0, mean, 0), count


@given(st.integers(2, 6), st.booleans(), st.integers(0, 2**31))
def test_means_are_those_of_the_sums_in_the_clear(num_clients, is_resilient, seed):
    parts = shown(num_clients, seed=seed)
    means = class_means.class_means(Session(num_clients), parts, is_resilient=is_resilient)
    center, count = expected(parts)
    np.testing.assert_array_equal(means.contributors, count)
    assert np.abs(means.center - center).max() <= 2**-41 + 1e-15
    # To float32, as the server keeps them, nothing is left of the error.
    np.testing.assert_allclose(means.center, center, rtol=1e-7, atol=1e-12)


@RESILIENT
def test_one_client_alone_has_no_sum(is_resilient):
    means = class_means.class_means(Session(1), shown(1, share=1), is_resilient=is_resilient)
    assert not means.contributors.any()
    assert not means.center.any()


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
def test_what_the_server_receives_of_one_client_is_noise(is_resilient, monkeypatch):
    zeros = {j: Shown(np.zeros((10, 200)), np.ones(10, bool)) for j in range(3)}
    session = Session(3)
    uploads = recorded_uploads(session, monkeypatch)
    class_means.class_means(session, zeros, is_resilient=is_resilient)
    of_sums = uploads[3:]
    assert_noise_of_three(of_sums)
    if not is_resilient:  # the masks of all cancel, and nothing else does
        total = sum(of_sums).reshape(10, 201)
        assert not total[:, :-1].any()


@RESILIENT
@pytest.mark.parametrize("kind", ["invite", "start", "upload", "classes"])
def test_who_leaves_counts_no_more(is_resilient, kind):
    """At any time before its second upload is through; of the others all is as it was."""
    parts, presence = shown(5, share=1), Presence()
    action = "send" if kind == "upload" else "receive"
    presence.lose_when(2, action, kind, after=1 if kind == "upload" else 0)
    session = Session(5, presence=presence)
    means = class_means.class_means(session, parts, is_resilient=is_resilient)
    center, count = expected({j: part for j, part in parts.items() if j != 2})
    np.testing.assert_array_equal(means.contributors, count)
    np.testing.assert_allclose(means.center, center, atol=2**-40)


def test_who_leaves_after_its_upload_counts_with_double_masks():
    parts, presence = shown(5, share=1), Presence()
    presence.lose_when(2, "receive", "survivors", after=1)
    session = Session(5, presence=presence)
    means = class_means.class_means(session, parts, is_resilient=True)
    np.testing.assert_array_equal(means.contributors, [5] * 4)
    np.testing.assert_allclose(means.center, expected(parts)[0], atol=2**-40)


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


@RESILIENT
def test_everybody_may_leave(is_resilient):
    presence = Presence()
    for client in range(3):
        presence.lose_when(client, "send", "upload")
    session = Session(3, presence=presence)
    means = class_means.class_means(session, shown(3), is_resilient=is_resilient)
    assert not means.contributors.any()


def test_bytes_are_as_counted():
    session, parts = Session(4), shown(4, num_classes=10, dim=32)
    before = session.communication()
    class_means.class_means(session, parts, is_resilient=False)
    after = session.communication()
    for kind, num_bytes in message_sizes.class_means(4, 10, 32).items():
        ways = (after.upload, before.upload), (after.download, before.download)
        assert num_bytes == sum(now.get(kind, 0) - then.get(kind, 0) for now, then in ways)
