"""Messages of a round of FedCT on a network.

    step     the server sends                    client j replies
    "turn"   `turn_form`: L, weights, r, key     `reply_form`: its answers, unless they are summed under masks
    others   a letter of a session under masks   its frames (`jaxfed.secure.session.network.exchanges`)

Answers are labels of ceil(log2 C) bits (one value more if the client abstains anywhere), probabilities, or
the bits of the XOR mechanism: the bytes that a simulation counts. Besides, a client says whether it has
answers, whether its learner failed, and the metrics of its fit.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxfed.algorithms.fedct.client_turn import ClientWork
from jaxfed.federation.sides import Unusable
from jaxfed.privacy.xor_mechanism import one_hot

TURN = "turn"


def turn_form(num_public: int) -> dict[str, Any]:
    """Return the form of the server's message at the start of a round.

    `label` and `weight` are of U, `rows` is r (0 without noise), `key` the data of the key of the fit.
    """
    return {
        "label": np.zeros(num_public, np.int32),
        "weight": np.zeros(num_public, np.float32),
        "rows": 0,
        "round": 0,
        "key": np.asarray(jax.random.key_data(jax.random.key(0))),
    }


def reply_form() -> dict[str, Any]:
    """Return the form of a client's reply.

    `speaks` is False if the client has no answers, `abstains` True if some of its labels are missing. Metrics
    are -1 where the learner has none.
    """
    return {
        "answers": b"",
        "speaks": False,
        "abstains": False,
        "failed": False,
        "clients": 0,
        "train_loss": 0.0,
        "fit_accuracy": 0.0,
    }


def packed_answers(work: ClientWork, answers: np.ndarray) -> bytes:
    """Encode labels int32 [U] or probabilities float32 [U, C]."""
    if work.question != "predict":
        return np.ascontiguousarray(answers, "<f4").tobytes()
    values = work.num_classes + int(np.any(answers < 0))
    return packed_labels(np.where(answers < 0, work.num_classes, answers), values)


def unpacked_answers(work: ClientWork, content: bytes, *, abstains: bool) -> np.ndarray:
    """Decode what `packed_answers` has encoded.

    Raises:
        Unusable: another number of bytes, a label that is no class, numbers that are no probabilities.
    """
    number = len(work.public)
    if work.question == "predict":
        labels = unpacked_labels(content, number, work.num_classes + int(abstains))
        return np.where(labels == work.num_classes, -1, labels).astype(np.int32)
    if len(content) != 4 * number * work.num_classes:
        raise Unusable(f"{len(content)} bytes of probabilities")
    found = np.frombuffer(content, "<f4").astype(np.float32).reshape(number, work.num_classes)
    if not (np.isfinite(found).all() and (found >= 0).all() and (found <= 1.001).all()):
        raise Unusable("answers that are no probabilities")
    return found


def packed_marks(work: ClientWork, marks: np.ndarray) -> tuple[bytes, bool]:
    """Encode labels with noise, bool [U, C], and say whether some are missing."""
    if work.privacy.release == "xor":
        return np.packbits(marks).tobytes(), False
    labels = np.where(marks.any(axis=1), marks.argmax(axis=1), -1)
    return packed_answers(work, labels), bool((labels < 0).any())


def unpacked_marks(work: ClientWork, content: bytes, *, abstains: bool) -> np.ndarray:
    """Decode what `packed_marks` has encoded.

    Raises:
        Unusable: another number of bytes, or a label that is no class.
    """
    shape = len(work.public), work.num_classes
    if work.privacy.release != "xor":
        labels = unpacked_answers(work, content, abstains=abstains)
        return one_hot(labels, work.num_classes)
    size = int(np.prod(shape))
    if len(content) != -(-size // 8):
        raise Unusable(f"{len(content)} bytes of bits")
    return np.unpackbits(np.frombuffer(content, np.uint8), count=size).reshape(shape).astype(bool)


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
    labels = bits.reshape(number, width) @ (1 << np.arange(width - 1, -1, -1))
    if (labels >= num_values).any():
        raise Unusable("a label that is no class")
    return labels
