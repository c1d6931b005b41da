"""A client's label frequencies as a class prior: scores weighted by their ratio to the cohort's frequencies.

    Z'_ic = Z_ic (pi_jc / pi_c)^beta                                    for every point i of client j
    pi_c  = (n_c + 1) / (n + C)                the cohort's share of class c among its n labels
    pi_jc = (n_jc + s pi_c) / (n_j + s)        client j's, shrunk to the cohort's with the weight of s labels

It is the correction of label shift (Saerens, Latinne, Decaestecker, Neural Computation 2002) with label
frequencies as the new class shares. Scores at alpha near 1 are flat, so the prior alone would decide. They
would have to be sharpened first, p^gamma. The largest entry of p^gamma (pi_j / pi) is that of
p (pi_j / pi)^(1 / gamma), so beta stands for 1 / gamma. beta = 0 switches the prior off. s is small for
unlike clients and large for like ones. Leave-one-out can estimate s and gamma
(`jaxfed.xclp.selection.prior_fit`). A client without labels has pi_j = pi and unchanged scores.

Client j needs its own labels and the cohort's number of labels of each class, as with
`label_matrix="class_balanced"`; nothing else leaves it. Leave-one-out removes a label from both n_jc and n_c.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray

_LOG_OF_FACTORS = 40.0  # e^40 times any score is a float32


def shares(own: Array, cohort: Array, labels: float = 0.0) -> tuple[Array, Array]:
    """pi_j and pi, float32 [..., C], of numbers of labels [..., C]; `labels` is s, 0 stands for C."""
    num_classes = own.shape[-1]
    weight = labels or num_classes
    share = (cohort + 1) / (cohort.sum(axis=-1, keepdims=True) + num_classes)
    return (own + weight * share) / (own.sum(axis=-1, keepdims=True) + weight), share


def weighed(scores: Array, own: Array, cohort: Array, beta: float, labels: float = 0.0) -> Array:
    """Z', float32 [m, C].

    A row beyond float32's range is divided by its largest factor, which changes neither labels nor shares.

    Args:
        scores: Z [m, C]; entries below zero count as zero.
        own: n_j, the client's numbers of labels, [C] or one row a point, [m, C].
        cohort: n, the same of all clients.
        beta: 0 or more.
        labels: s; 0 stands for C.
    """
    if not beta:
        return scores
    xp = jnp if isinstance(scores, jax.Array) else np
    own, cohort = (
        xp.maximum(xp.broadcast_to(xp.asarray(counts, np.float32), scores.shape), 0)
        for counts in (own, cohort)
    )
    own_share, share = shares(own, cohort, labels)
    z = xp.maximum(scores, 0)
    ratio = xp.where(z > 0, own_share / share, np.float32(0))
    largest = ratio.max(axis=-1, keepdims=True)
    largest = xp.where(largest > 0, largest, np.float32(1))
    fits = xp.abs(np.float32(beta) * xp.log(largest)) <= _LOG_OF_FACTORS
    return z * (ratio / xp.where(fits, np.float32(1), largest)) ** np.float32(beta)
