"""Encodings of FedCT's messages: what is packed is unpacked, and what nobody can have packed is refused."""

import numpy as np
import pytest

from jaxfed.algorithms.fedct.round import labels_of, packed, unpacked
from jaxfed.algorithms.fedct.settings import LabelPrivacy
from jaxfed.federation.algorithm import Unusable
from jaxfed.federation.communication import label_bytes
from jaxfed.privacy.xor_mechanism import one_hot

RNG = np.random.default_rng(5)
LABELS, BITS, ANSWERS = (
    LabelPrivacy(release=release) for release in ("none", "xor", "randomized_response")
)


@pytest.mark.parametrize("num_public", [0, 1, 7, 33])
@pytest.mark.parametrize("num_classes", [2, 3, 4, 10, 16, 257])
@pytest.mark.parametrize("abstains", [False, True])
@pytest.mark.parametrize("privacy", [LABELS, ANSWERS])
def test_labels(privacy, num_public, num_classes, abstains):
    labels = RNG.integers(0, num_classes, num_public).astype(np.int32)
    if abstains:
        labels[::2] = -1
    missing, shape = bool((labels < 0).any()), (num_public, num_classes)
    content, told = packed(privacy, one_hot(labels, num_classes))
    assert told is missing
    assert len(content) == label_bytes(num_public, num_classes + missing)
    found = unpacked(privacy, content, shape, abstains=missing)
    assert found.dtype == bool
    np.testing.assert_array_equal(labels_of(found), labels)
    for other in (content + b"\0", content[:-1]) if content else (b"\0",):
        with pytest.raises(Unusable, match="bytes of labels"):
            unpacked(privacy, other, shape, abstains=missing)


def test_first_label_is_in_the_highest_bits():
    marks = one_hot(np.array([1, 2, 0, -1]), 4)
    assert packed(LABELS, marks) == (bytes([0b00101000, 0b01000000]), True)


@pytest.mark.parametrize(("num_classes", "abstains"), [(3, False), (10, False), (10, True)])
def test_a_label_that_is_no_class_is_refused(num_classes, abstains):
    values = num_classes + abstains  # the first number that means nothing
    width = (values - 1).bit_length()
    bits = np.zeros((4, width), bool)
    bits[2] = [values >> place & 1 for place in range(width - 1, -1, -1)]
    content = np.packbits(bits).tobytes()
    with pytest.raises(Unusable, match="no class"):
        unpacked(LABELS, content, (4, num_classes), abstains=abstains)


@pytest.mark.parametrize("num_public", [1, 3, 8])
def test_bits_of_the_xor_mechanism(num_public):
    marks = RNG.random((num_public, 3)) < 0.5
    content, abstains = packed(BITS, marks)
    assert (len(content), abstains) == (-(-num_public * 3 // 8), False)
    found = unpacked(BITS, content, marks.shape, abstains=False)
    np.testing.assert_array_equal(found, marks)
    with pytest.raises(Unusable, match="bytes of bits"):
        unpacked(BITS, content + b"\0", marks.shape, abstains=False)
