"""Calibrated confidences: class shares of the scores, sharpened by their likelihood in leave-one-out.

Line 16's confidence, 1 - entropy / log C of the shares p_i = Z_i / sum_c Z_ic, ranks points but is no
probability: at alpha = 0.99 shares are nearly flat, and points of confidence 0.01 may be right nine times in
ten. `confidence="calibrated"` gives the probability of the label under

    q_ic = (1 - e) p_ic^gamma / sum_c p_ic^gamma + e / C,    e = 0.01.

This is temperature scaling (Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML
2017; log p in place of logits, gamma = 1 / T) with a small probability for every class. Without the latter, a
single label on the wrong side of two clusters, with p = 0, would outweigh all others. Labels (line 15) do not
change. gamma is the value of `SHARPNESS` with the largest leave-one-out likelihood of the labels,

    sum over labeled i of log q_i,y_i(gamma),    p_i of scores without y_i
    (`jaxfed.xclp.selection.leave_one_out`),

the first of equal ones. A label that no other reaches has q = 1 / C for every gamma and no influence. If all
labels are like that, or there are none, gamma is 1.

Each client sums over its own labels, for every value of the grid, and counts them. The server adds up the
sums, masked if row sums are masked, and announces the chosen value: `len(SHARPNESS) + 1` numbers up and one
down per client, in addition to leave-one-out's messages. The server learns the cohort's log-likelihoods but
no client's.

Under `label_epsilon` confidences are calibrated to the randomized labels, noise included. On labeled points
they are too high, because the point's own label is part of Z.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray

SHARPNESS = tuple(2.0 ** (k / 2) for k in range(-6, 21))
ANY_CLASS = 0.01  # e
_UNIT = 2.0**-10  # nats; sums of its multiples are exact, in any order of clients


def probabilities(scores: Array, sharpness: float) -> Array:
    """q, float32 [m, C], of scores [m, C]; entries below zero count as zero, rows of zeros are uniform."""
    xp = jnp if isinstance(scores, jax.Array) else np
    z = xp.maximum(scores, 0).astype(np.float32)
    largest = z.max(axis=1, keepdims=True)
    relative = z / xp.where(largest > 0, largest, xp.ones_like(largest))
    powers = xp.where(largest > 0, relative ** np.float32(sharpness), xp.ones_like(z))
    share = powers / powers.sum(axis=1, keepdims=True)
    return np.float32(1 - ANY_CLASS) * share + np.float32(ANY_CLASS / scores.shape[1])


def calibrated(scores: Array, sharpness: float) -> Array:
    """Confidence of the largest class, float32 [m]; 0 where no label reaches a point."""
    xp = jnp if isinstance(scores, jax.Array) else np
    q = probabilities(scores, sharpness).max(axis=1)
    return xp.where(scores.max(axis=1) > 0, q, xp.zeros_like(q))


def log_likelihoods(left_out: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """A client's sums for every value of `SHARPNESS`, as `log_sums`.

    Args:
        left_out: scores of its labeled points without their own label, float32 [m, C].
        answers: their labels, int [m].
    """
    return log_sums([probabilities(left_out, gamma) for gamma in SHARPNESS], answers)


def log_sums(probabilities: Sequence[Array], answers: np.ndarray) -> np.ndarray:
    """A client's log-likelihoods in nats and its number of labels, float64 [G + 1, 1].

    Sums are multiples of 2^-10. Masked row sums hold up to 2^23 / p nats from each of p clients: with 100
    clients and ten classes, 12,000 labels that gamma = 1024 considers impossible.

    Args:
        probabilities: of the classes of its labeled points under G models, [m, C] each.
        answers: their labels, int [m].
    """
    at = np.arange(len(answers)), answers
    sums = [np.log(np.asarray(q)[at].astype(np.float64)).sum() for q in probabilities]
    return np.append(np.rint(np.array(sums) / _UNIT) * _UNIT, float(len(answers)))[:, None]


def likeliest(sums: np.ndarray) -> tuple[float, float | None]:
    """Best `SHARPNESS` by the cohort's sums [G + 1, 1], and its mean loss in nats; None without labels."""
    likelihoods, num_labels = sums[:-1, 0], float(sums[-1, 0])
    if not num_labels:
        return 1.0, None
    if likelihoods.min() == likelihoods.max():
        return 1.0, -float(likelihoods[0]) / num_labels
    best = int(np.argmax(likelihoods))
    return SHARPNESS[best], -float(likelihoods[best]) / num_labels
