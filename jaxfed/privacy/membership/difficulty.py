"""Difficulty calibration (Watson, Guo, Cormode, Sablayrolles, ICLR 2022): how much better than other models.

    score(x) = mean over references not trained on x of loss_ref(x)  -  loss(x)

An example that everybody has right says nothing of this model. The loss may be any, also 1[f(x) != y] of a
model that gives labels alone, of which this makes the most: a right answer counts by how rare it is.
"""

from __future__ import annotations

import numpy as np

from jaxfed.privacy.membership.evidence import mean_over, outside


def scores(
    loss: np.ndarray, reference_loss: np.ndarray, is_in: np.ndarray | None = None
) -> np.ndarray:
    """float64 of the shape of `loss`.

    Args:
        loss: the target's, [n] or [S, n].
        reference_loss: [R, n].
        is_in: which references were trained on which example, bool [R, n]; none on any if left out.

    Raises:
        UsageError: shapes that do not fit, or an example that every reference was trained on.
    """
    expected = mean_over(reference_loss, outside(reference_loss, is_in))
    return expected - np.asarray(loss, np.float64)
