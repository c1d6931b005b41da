"""The reference attack (attack R of Ye et al., CCS 2022): a threshold for each example, by other models.

    score(x) = share of the reference models not trained on x whose loss on x is larger,    ties half

An example that is easy for everybody is not taken for a member for that. With R references there are 2 R + 1
scores at most.
"""

from __future__ import annotations

import numpy as np

from jaxfed.privacy.membership.evidence import mean_over, outside


def scores(
    loss: np.ndarray, reference_loss: np.ndarray, is_in: np.ndarray | None = None
) -> np.ndarray:
    """Shares, float64 of the shape of `loss`.

    Args:
        loss: the target's, [n] or [S, n].
        reference_loss: [R, n].
        is_in: which references were trained on which example, bool [R, n]; none on any if left out.

    Raises:
        UsageError: shapes that do not fit, or an example that every reference was trained on.

    Cost: S R n comparisons.
    """
    own, others = np.asarray(loss, np.float64), np.asarray(reference_loss, np.float64)
    is_out = outside(others, is_in)
    rows = [mean_over((others > row) + (others == row) / 2, is_out) for row in np.atleast_2d(own)]
    return np.reshape(rows, own.shape)
