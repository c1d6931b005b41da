"""A client's message of labels of U: class indicators, packed as labels or as bits.

    content, abstains = packed(privacy, marks)                      # bool [U, C]
    marks = unpacked(privacy, content, (U, C), abstains=abstains)

Labels take ceil(log2 C) bits each, or ceil(log2(C + 1)) if the client abstains anywhere; the release of the
XOR mechanism takes U C bits.
"""

from __future__ import annotations

import numpy as np

from jaxfed.algorithms.fedct.label_privacy import LabelPrivacy
from jaxfed.federation.sides import Unusable
from jaxfed.privacy.xor_mechanism import one_hot


def packed(privacy: LabelPrivacy, marks: np.ndarray) -> tuple[bytes, bool]:
    """Encode marks bool [U, C], and say whether labels are missing."""
    if privacy.release == "xor":
        return np.packbits(marks).tobytes(), False
    labels, num_classes = labels_of(marks), marks.shape[1]
    abstains = bool((labels < 0).any())
    return packed_labels(
        np.where(labels < 0, num_classes, labels), num_classes + abstains
    ), abstains


def unpacked(
    privacy: LabelPrivacy, content: bytes, shape: tuple[int, int], *, abstains: bool
) -> np.ndarray:
    """Decode what `packed` has encoded.

    Raises:
        Unusable: another number of bytes, or a label that is no class.
    """
    num_public, num_classes = shape
    if privacy.release != "xor":
        return one_hot(unpacked_labels(content, num_public, num_classes + abstains), num_classes)
    size = num_public * num_classes
    if len(content) != -(-size // 8):
        raise Unusable(f"{len(content)} bytes of bits")
    return np.unpackbits(np.frombuffer(content, np.uint8), count=size).reshape(shape).astype(bool)


def labels_of(marks: np.ndarray) -> np.ndarray:
    """The labels int32 [U] of class indicators of at most one class each; -1 for none."""
    return marks @ np.arange(1, marks.shape[1] + 1, dtype=np.int32) - 1


def packed_labels(labels: np.ndarray, num_values: int) -> bytes:
    """Encode numbers below `num_values` by ceil(log2 num_values) bits each."""
    width = (num_values - 1).bit_length()
    bits = labels[:, None] >> np.arange(width - 1, -1, -1) & 1
    return np.packbits(bits.astype(bool)).tobytes()


def unpacked_labels(content: bytes, number: int, num_values: int) -> np.ndarray:
    """Decode what `packed_labels` has encoded.

    Raises:
        Unusable: another number of bytes, or a number that is not below `num_values`.
    """
    width = (num_values - 1).bit_length()
    if len(content) != -(-number * width // 8):
        raise Unusable(f"{len(content)} bytes of labels")
    bits = np.unpackbits(np.frombuffer(content, np.uint8), count=number * width)
    labels = np.zeros(number, np.int32)
    for place in range(width):
        labels = 2 * labels + bits[place::width]
    if (labels >= num_values).any():
        raise Unusable("a label that is no class")
    return labels
