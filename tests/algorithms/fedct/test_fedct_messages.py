"""Encodings of FedCT's messages: what is packed is unpacked, and what nobody can have packed is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxfed.algorithms.fedct.network import messages
from jaxfed.federation.communication import label_bytes
from jaxfed.federation.sides import Unusable

RNG = np.random.default_rng(5)


def work_of(num_public, num_classes, question="predict", release="none"):
    """The fields of `ClientWork` that encodings read."""
    return SimpleNamespace(
        public=np.zeros((num_public, 1)),
        num_classes=num_classes,
        question=question,
        privacy=SimpleNamespace(release=release),
    )


@pytest.mark.parametrize("num_public", [0, 1, 7, 33])
@pytest.mark.parametrize("num_classes", [2, 3, 4, 10, 16, 257])
@pytest.mark.parametrize("abstains", [False, True])
def test_labels(num_public, num_classes, abstains):
    work = work_of(num_public, num_classes)
    labels = RNG.integers(0, num_classes, num_public).astype(np.int32)
    if abstains:
        labels[::2] = -1
    missing = bool((labels < 0).any())
    content = messages.packed_answers(work, labels)
    assert len(content) == label_bytes(num_public, num_classes + missing)
    found = messages.unpacked_answers(work, content, abstains=missing)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, labels)
    for other in (content + b"\0", content[:-1]) if content else (b"\0",):
        with pytest.raises(Unusable, match="bytes of labels"):
            messages.unpacked_answers(work, other, abstains=missing)


def test_first_label_is_in_the_highest_bits():
    assert messages.packed_labels(np.array([1, 2, 0, 4]), 5) == bytes([0b00101000, 0b01000000])


@pytest.mark.parametrize(("num_classes", "abstains"), [(3, False), (10, False), (10, True)])
def test_a_label_that_is_no_class_is_refused(num_classes, abstains):
    work = work_of(4, num_classes)
    values = num_classes + abstains  # the first number that means nothing
    width = (values - 1).bit_length()
    bits = np.zeros((4, width), bool)
    bits[2] = [values >> place & 1 for place in range(width - 1, -1, -1)]
    with pytest.raises(Unusable, match="no class"):
        messages.unpacked_answers(work, np.packbits(bits).tobytes(), abstains=abstains)


def test_probabilities():
    work = work_of(5, 3, question="probabilities")
    answers = RNG.dirichlet(np.ones(3), 5).astype(np.float32)
    content = messages.packed_answers(work, answers)
    assert len(content) == 4 * 5 * 3
    np.testing.assert_array_equal(messages.unpacked_answers(work, content, abstains=False), answers)
    for wrong in (np.nan, np.inf, -0.5, 1.1):
        spoilt = answers.copy()
        spoilt[3, 1] = wrong
        with pytest.raises(Unusable, match="no probabilities"):
            messages.unpacked_answers(work, messages.packed_answers(work, spoilt), abstains=False)
    with pytest.raises(Unusable, match="bytes of probabilities"):
        messages.unpacked_answers(work, content[:-4], abstains=False)


@pytest.mark.parametrize("num_public", [1, 3, 8])
def test_bits_of_the_xor_mechanism(num_public):
    work = work_of(num_public, 3, release="xor")
    marks = RNG.random((num_public, 3)) < 0.5
    content, abstains = messages.packed_marks(work, marks)
    assert (len(content), abstains) == (-(-num_public * 3 // 8), False)
    np.testing.assert_array_equal(messages.unpacked_marks(work, content, abstains=False), marks)
    with pytest.raises(Unusable, match="bytes of bits"):
        messages.unpacked_marks(work, content + b"\0", abstains=False)


@pytest.mark.parametrize("abstains", [False, True])
def test_labels_with_noise(abstains):
    work = work_of(6, 3, release="randomized_response")
    marks = np.eye(3, dtype=bool)[[0, 2, 1, 1, 0, 2]]
    if abstains:
        marks[4] = False
    content, missing = messages.packed_marks(work, marks)
    assert missing is abstains
    np.testing.assert_array_equal(messages.unpacked_marks(work, content, abstains=missing), marks)
