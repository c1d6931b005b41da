"""Noise on the labels that clients send for public examples, and the consensus from noisy labels.

    M_k = release(v_k)   at every client that votes      (`jaxfed.privacy.xor_mechanism`, `label_release`)
    B   = sum_k M_k      in the clear, or under masks
    n_hat(B)             estimated votes for each class, which a consensus takes as its tally

In a simulation noise is drawn from a key, so runs can be repeated. This measures the cost of noise. It
protects nobody from those who know the seed. On a network each client draws from its operating system.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxfed.algorithms.fedct.label_privacy import LabelPrivacy
from jaxfed.federation.communication import label_bytes
from jaxfed.privacy import label_release, xor_mechanism
from jaxfed.privacy import randomized_response as rr
from jaxfed.privacy.label_sensitivity import BITS_A_ROW, trivial_rows
from jaxfed.training.consensus.client_sums import ClientSums
from jaxfed.training.consensus.consensus import Agreed, Consensus


def agreed_under_noise(
    privacy: LabelPrivacy,
    rows: int,
    consensus: Consensus,
    marks: list[np.ndarray] | None,
    shape: tuple[int, int],
    sums: ClientSums,
    *,
    num_clients: int,
) -> Agreed:
    """Return the consensus on labels with noise.

    Args:
        privacy: settings of the release.
        rows: labels that may change with one private example; 0: all of them, the bound that always holds.
        consensus: a consensus on labels, with a tally.
        marks: what each client sends (`released_marks`); None if clients of other processes add them under
            masks.
        shape: of a client's marks, [U, C].
        sums: how they are added, and where bytes are counted.
        num_clients: number of clients that send.

    Raises:
        UsageError: an invalid epsilon or number of rows.
    """
    assert consensus.from_tally is not None
    num_public, num_classes = shape
    are_bits = privacy.release == "xor"
    total = _total(marks or [], num_clients, shape, sums, are_bits=are_bits)
    number = sums.num_summed(num_clients)
    if total is None:
        total, number = np.zeros(shape, np.int32), 0
    rows = rows or trivial_rows(num_public)
    if are_bits:
        bits = BITS_A_ROW * rows
        flip = xor_mechanism.flip_probability(privacy.epsilon, bits, num_classes, privacy.condition)
        counts = xor_mechanism.unbiased_counts(total, number, flip)
    else:
        counts = label_release.unbiased_counts(total, privacy.epsilon, rows, num_classes)
    return consensus.from_tally(jnp.asarray(counts.astype(np.float32)))


def released_marks(
    privacy: LabelPrivacy,
    rows: int,
    labels: np.ndarray,
    num_public: int,
    num_classes: int,
    draw: rr.DrawUniform,
) -> np.ndarray:
    """Return one client's noisy release of labels int32 [n], as class indicators bool [n, C].

    `num_public` is |U|; with `rows` 0 it determines how many labels may change. `draw` is the noise's source.
    """
    rows = rows or trivial_rows(num_public)
    if privacy.release == "randomized_response":
        sent = label_release.release(labels, privacy.epsilon, rows, num_classes, draw)
        return xor_mechanism.one_hot(sent, num_classes)
    marks, bits = xor_mechanism.one_hot(labels, num_classes), BITS_A_ROW * rows
    return xor_mechanism.release(marks, privacy.epsilon, bits, draw, condition=privacy.condition)


def _total(
    own: list[np.ndarray],
    num_clients: int,
    shape: tuple[int, int],
    sums: ClientSums,
    *,
    are_bits: bool,
) -> np.ndarray | None:
    """int32 [U, C], the sum of clients' indicators; None if no sum is opened."""
    if not sums.is_plaintext:
        return sums.total(
            num_clients, shape, lambda client: own[client].astype(np.int32), are_marks=True
        )
    marks = [one.astype(np.int32) for one in own]
    for one in own:
        num_rows, num_classes = one.shape
        # A row without a label stays without one where answers are sent.
        values = num_classes + int(not one.any(axis=1).all())
        num_bytes = -(-one.size // 8) if are_bits else label_bytes(num_rows, values)
        sums.communication.up("votes", num_bytes)
    return sum(marks[1:], marks[0]) if marks else None
