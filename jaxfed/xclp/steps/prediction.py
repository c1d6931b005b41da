"""From class scores to labels and confidences: the formulas of lines 15 and 16 of Algorithm 1."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.data.dataset import UNLABELED


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
    return (
        jnp.where(reached, label, UNLABELED),
        jnp.where(reached, jnp.clip(confidence, 0, 1), 0),
    )


def entropy(p: jax.Array) -> jax.Array:
    """-sum_c p_c log p_c of probabilities [..., C], [...], in nats; 0 log 0 = 0."""
    return -jnp.sum(jax.scipy.special.xlogy(p, p), axis=-1)


def relative(confidences: jax.Array) -> jax.Array:
    """Confidences [n], n > 0, divided by the largest of them; zeros stay zeros."""
    largest = confidences.max()
    return confidences / jnp.where(largest > 0, largest, 1)
