"""Release labels of public examples by k-ary randomized response, row by row.

A client's label is kept with e^x / (e^x + C - 1), x = eps / r, any other given with 1 / (e^x + C - 1)
(`jaxfed.privacy.randomized_response`), so each label is x-private. If neighboring data sets give labels that
differ in at most r ROWS, the likelihood ratio is a product over these,

    eps = r x,     attained,

and a row reveals nothing more than a label. The XOR mechanism (`xor_mechanism`) gives the same guarantee
with s = 2 r bits, where each is flipped with p = 1 / (1 + e^(x / 2)), the zeros too.

With h_c the number of answers c on an example and n_c the number of clients with label c,
`randomized_response.unbiased` gives

    n_hat_c = (h_c - p_0 sum_c' h_c') / (p_1 - p_0),     E[n_hat_c] = n_c

A missing label (-1) stays missing: abstention is not protected.
"""

from __future__ import annotations

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.privacy import randomized_response as rr


def row_epsilon(epsilon: float, rows: int) -> float:
    """x = eps / r.

    Raises:
        UsageError: no rows.
    """
    if rows < 1:
        raise UsageError(f"rows={rows}: use integers from 1 on")
    return epsilon / rows


def release(
    labels: np.ndarray,
    epsilon: float,
    rows: int,
    num_classes: int,
    draw: rr.DrawUniform = rr.from_system,
) -> np.ndarray:
    """Randomize labels.

    Args:
        labels: int [U], -1 to C - 1.
        epsilon: of this release.
        rows: r.
        num_classes: C.
        draw: source of noise: the operating system, or in experiments `randomized_response.from_key`.

    Returns:
        int32 [U].
    """
    return rr.randomize_labels(labels, draw, num_classes, row_epsilon(epsilon, rows))


def unbiased_counts(
    histogram: np.ndarray, epsilon: float, rows: int, num_classes: int
) -> np.ndarray:
    """n_hat, float64 [U, C], from a histogram of answers, integers [U, C]."""
    return rr.unbiased(np.asarray(histogram), num_classes, row_epsilon(epsilon, rows))
