"""Lines 15 and 16 of Algorithm 1: from class scores to every client's own labels and confidences.

Calibrated confidences. Line 16's confidence, 1 - entropy / log C of the shares p_i = Z_i / sum_c Z_ic, ranks
points but is no probability: at alpha = 0.99 shares are nearly flat, and points of confidence 0.01 may be
right nine times in ten. `confidence="calibrated"` gives the probability of the label under

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
sums and announces the chosen value: `len(SHARPNESS) + 1` numbers up and one down per client, in addition to
leave-one-out's messages.

Under `label_epsilon` confidences are calibrated to the randomized labels, noise included. On labeled points
they are too high, because the point's own label is part of Z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.kernels.devices import padded_rows

if TYPE_CHECKING:
    from jaxfed.xclp.settings.parameters import Parameters
    from jaxfed.xclp.steps.row_sums import Scores


class Prediction(NamedTuple):
    """Output of one client: `labels` int32 [n_j], `confidences` f32 [n_j], `scores` f32 [n_j, C]."""

    labels: np.ndarray
    confidences: np.ndarray
    scores: np.ndarray


@jax.jit
def predict(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """argmax_c Z_ic, and 1 - entropy(Z_i / sum_c Z_ic) / log C, for every row of Z.

    Args:
        scores: float32 [n, C]; entries below zero count as zero.

    Returns:
        labels int32 [n], ties to the smaller class, -1 for a row without a positive entry; confidences
        float32 [n] in [0, 1], 0 for such a row. With one class every reached point has confidence 1.
    """
    positive = jnp.maximum(scores, 0)
    total = positive.sum(axis=-1)
    reached = total > 0
    share = positive / jnp.where(reached, total, 1)[..., None]
    confidence = 1 - entropy(share) / max(np.log(scores.shape[-1]), np.finfo(np.float32).tiny)
    label = jnp.argmax(positive, axis=-1).astype(jnp.int32)
    return (jnp.where(reached, label, UNLABELED), jnp.where(reached, jnp.clip(confidence, 0, 1), 0))


def entropy(p: jax.Array) -> jax.Array:
    """-sum_c p_c log p_c of probabilities [..., C], [...], in nats; 0 log 0 = 0."""
    return -jnp.sum(jax.scipy.special.xlogy(p, p), axis=-1)


def relative(confidences: jax.Array) -> jax.Array:
    """Confidences [n], n > 0, divided by the largest of them; zeros stay zeros."""
    largest = confidences.max()
    return confidences / jnp.where(largest > 0, largest, 1)


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
    """`log_sums` for every value of `SHARPNESS`, of scores without the points' own labels, float32 [m, C]."""
    return log_sums([probabilities(left_out, gamma) for gamma in SHARPNESS], answers)


def log_sums(probabilities: Sequence[Array], answers: np.ndarray) -> np.ndarray:
    """Log-likelihoods of some labels in nats and their number, float64 [G + 1, 1].

    `probabilities` are those of the classes of labeled points under G models, [m, C] each; `answers` their
    labels, int [m]. Sums are multiples of 2^-10.
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


def client_predictions(
    vectors: Sequence[np.ndarray],
    scores: Mapping[int, Scores],
    p: Parameters,
    sharpness: float | None,
) -> tuple[list[Prediction], np.float32]:
    """Lines 15 and 16, CS: labels and confidences of every client's own rows of Z.

    A client without scores, because it has left, gets the predictions of unreached points. Also returns the
    largest confidence of any point, by which `relative_confidence` divides (not in the paper).
    """
    nothing = [np.zeros((len(v), p.num_classes), np.float32) for v in vectors]
    z = [scores[j].weighted if j in scores else zeros for j, zeros in enumerate(nothing)]
    predictions = predicted(z, sharpness)
    largest = np.float32(max(each.confidences.max(initial=0) for each in predictions))
    if p.relative_confidence and largest:
        predictions = [
            each._replace(confidences=each.confidences / largest) for each in predictions
        ]
    return predictions, largest


def predicted(scores: Sequence[np.ndarray], sharpness: float | None = None) -> list[Prediction]:
    """Predictions of all clients in one call; `sharpness` calibrates confidences, None keeps line 16's."""
    z = np.concatenate(scores)
    labels, confidences = predict(jnp.asarray(padded_rows(z)))
    if sharpness is not None:
        confidences = calibrated(z, sharpness)
    ends = np.cumsum([len(each) for each in scores])
    parts = (np.split(np.asarray(a)[: len(z)], ends[:-1]) for a in (labels, confidences, z))
    return [Prediction(*part) for part in zip(*parts, strict=True)]
