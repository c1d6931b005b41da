"""Difficulty calibration (Watson, Guo, Cormode, Sablayrolles, ICLR 2022): loss relative to other models.

    score(x) = mean over references not trained on x of loss_ref(x)  -  loss(x)

An example that all models classify correctly gives no evidence about this model. The loss is arbitrary; with
1[f(x) != y], for label-only models, a correct answer counts more the rarer it is.
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
        is_in: bool [R, n], True if the reference was trained on the example; None: all False.

    Raises:
        UsageError: shapes that do not fit, or an example that every reference was trained on.
    """
    expected = mean_over(reference_loss, outside(reference_loss, is_in))
    return expected - np.asarray(loss, np.float64)
