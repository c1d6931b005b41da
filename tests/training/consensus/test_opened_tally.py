"""Tallies opened by masked sums are those in the clear, and bytes are counted."""

import numpy as np
import pytest

from jaxfed.federation.communication import Communication, label_bytes
from jaxfed.secure.vote_sums import message_bytes
from jaxfed.training.consensus.client_sums import ClientSums
from jaxfed.training.consensus.consensus import CONSENSUS
from jaxfed.training.consensus.opened_tally import agreed, opened_tally

C, U = 3, 50
MASKED = pytest.mark.parametrize("sums", ["masked", "masked_resilient"])


def answers_of(kind, num_clients=4, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "labels":
        return rng.integers(-1, C, (num_clients, U)).astype(np.int32)
    if kind == "numbers":
        return rng.normal(size=(num_clients, U)).astype(np.float32)
    return rng.dirichlet(np.ones(C), (num_clients, U)).astype(np.float32)


def opened(way, answers, ids, sums):
    communication = Communication()
    tally = opened_tally(way, answers, ids, ClientSums(sums, communication), num_classes=C)
    return tally, communication


@MASKED
@pytest.mark.parametrize("name", [name for name in CONSENSUS if name != "staple"])
def test_masked_sums_are_those_in_the_clear(name, sums):
    way = CONSENSUS[name](C)
    answers, ids = answers_of(way.answers), np.int32([5, -1, 0, 7])
    ours, _ = opened(way, answers, ids, sums)
    plain, _ = opened(way, answers, ids, "plaintext")
    assert ours.dtype == plain.dtype
    if way.answers == "labels":
        np.testing.assert_array_equal(ours, plain)
    np.testing.assert_allclose(ours, plain, rtol=1e-6, atol=1e-6)
    for one, other in zip(way.from_tally(ours), way.agree(answers, ids), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@MASKED
@pytest.mark.parametrize("ids", [[-1, -1, -1, -1], [-1, 3, -1, -1]])
def test_one_client_alone_has_no_tally(ids, sums):
    way = CONSENSUS["majority"](C)
    tally, communication = opened(way, answers_of("labels"), np.int32(ids), sums)
    assert tally.shape == (U, C)
    assert not tally.any()
    assert not communication.upload


def test_bytes_in_the_clear_and_under_masks():
    way, votes = CONSENSUS["majority"](C), np.maximum(answers_of("labels"), 0)
    _, plain = opened(way, votes, np.arange(4, dtype=np.int32), "plaintext")
    assert plain.upload == {"votes": 4 * -(-U * 2 // 8)}
    votes[1, 3] = -1  # the same two bits hold a fourth value
    assert opened(way, votes, np.arange(4, dtype=np.int32), "plaintext")[1].upload == plain.upload
    votes[1] = -1
    assert opened(way, votes, np.int32([0, -1, 1, 2]), "plaintext")[1].upload == {"votes": 39}
    _, masked = opened(way, votes, np.arange(4, dtype=np.int32), "masked")
    assert masked.upload["upload"] == message_bytes(4, U, C)["upload"]
    assert "votes" not in masked.upload
    soft = CONSENSUS["soft_mean"](C)
    _, plain = opened(soft, answers_of("probabilities"), np.int32([0, -1, 1, 2]), "plaintext")
    assert plain.upload == {"votes": 3 * 4 * U * C}


@pytest.mark.parametrize(
    ("num_labels", "num_values", "num_bytes"),
    [(8, 2, 1), (9, 2, 2), (10_000, 10, 5000), (10_000, 16, 5000), (10_000, 17, 6250), (5, 1, 0)],
)
def test_packed_labels(num_labels, num_values, num_bytes):
    assert label_bytes(num_labels, num_values) == num_bytes


def test_marks_need_not_be_one_hot():
    """What a mechanism releases has any number of ones in a row."""
    marks = list(np.random.default_rng(0).integers(0, 2, (3, U, C)).astype(bool))
    sums = ClientSums("masked", Communication())
    total = sums.total(3, (U, C), marks.__getitem__, are_marks=True)
    np.testing.assert_array_equal(total, np.sum(marks, axis=0))


@pytest.mark.parametrize("sums", ["plaintext", "masked", "masked_resilient"])
@pytest.mark.parametrize("name", CONSENSUS)
def test_one_call_for_every_consensus(name, sums):
    way = CONSENSUS[name](C)
    answers, ids = answers_of(way.answers), np.int32([5, -1, 0, 7])
    if name == "staple" and sums != "plaintext":
        return
    communication = Communication()
    ours = agreed(way, answers, ids, ClientSums(sums, communication), num_classes=C)
    for one, other in zip(ours, way.agree(answers, ids), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert ("votes" in communication.upload) == (sums == "plaintext")
    assert ("secrets" in communication.upload) == (sums == "masked_resilient")
