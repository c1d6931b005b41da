"""Sums under masks are those in the clear, and bytes are counted."""

import message_sizes
import numpy as np
import pytest

from jaxfed.federation.communication import Communication, label_bytes
from jaxfed.secure.vote_sums import vote_histogram
from jaxfed.training.consensus.client_sums import in_fresh_session, summed_answers

C, U = 3, 50
ANSWERS = np.random.default_rng(0).dirichlet(np.ones(C), (4, U)).astype(np.float32)
MARKS = np.random.default_rng(0).integers(0, 2, (3, U, C)).astype(bool)


@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
def test_masked_sums_are_those_in_the_clear(sums):
    ids = np.int32([5, -1, 0, 7])
    plain, masked = Communication(), Communication()
    ours = summed_answers(ANSWERS, ids, sums, masked)
    theirs = summed_answers(ANSWERS, ids, "plaintext", plain)
    assert ours.dtype == theirs.dtype == np.float32
    np.testing.assert_allclose(theirs, ANSWERS[[0, 2, 3]].sum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    assert plain.upload == {"votes": 3 * 4 * U * C}
    assert "votes" not in masked.upload
    assert ("secrets" in masked.upload) == (sums == "masked_resilient")


@pytest.mark.parametrize("sums", ["masked", "masked_resilient"])
@pytest.mark.parametrize("ids", [[-1, -1, -1, -1], [-1, 3, -1, -1]])
def test_one_client_alone_has_no_sum(ids, sums):
    communication = Communication()
    total = summed_answers(ANSWERS, np.int32(ids), sums, communication)
    assert total.shape == (U, C)
    assert not total.any()
    assert not communication.upload


def test_marks_need_not_be_one_hot():
    """What a mechanism releases has any number of ones in a row."""
    communication = Communication()
    total = in_fresh_session(vote_histogram, list(MARKS), communication)
    np.testing.assert_array_equal(total, np.sum(MARKS, axis=0))
    assert communication.upload["upload"] == message_sizes.votes(3, U, C)["upload"]


@pytest.mark.parametrize(
    ("num_labels", "num_values", "num_bytes"),
    [(8, 2, 1), (9, 2, 2), (10_000, 10, 5000), (10_000, 16, 5000), (10_000, 17, 6250), (5, 1, 0)],
)
def test_packed_labels(num_labels, num_values, num_bytes):
    assert label_bytes(num_labels, num_values) == num_bytes
