"""The reference attack (attack R of Ye et al., CCS 2022): a threshold for each example, by other models.

    score(x) = share of the reference models not trained on x whose loss on x is larger,    ties half

An example that is easy for all models does not count as a member for this reason. With R references there are
at most 2 R + 1 distinct scores.
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
        is_in: bool [R, n], True if the reference was trained on the example; None: all False.

    Raises:
        UsageError: shapes that do not fit, or an example that every reference was trained on.

    Cost: S R n comparisons.
    """
    own, others = np.asarray(loss, np.float64), np.asarray(reference_loss, np.float64)
    is_out = outside(others, is_in)
    rows = [mean_over((others > row) + (others == row) / 2, is_out) for row in np.atleast_2d(own)]
    return np.reshape(rows, own.shape)
