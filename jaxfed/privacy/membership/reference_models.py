"""Losses relative to those of other models: an example that is easy for all models is no evidence.

    difficulty    score(x) = mean over references not trained on x of loss_ref(x)  -  loss(x)
    reference     score(x) = share of the references not trained on x whose loss on x is larger,   ties half

Difficulty calibration is by Watson, Guo, Cormode, Sablayrolles, ICLR 2022; reference is attack R of Ye et
al., CCS 2022. The loss is arbitrary; with 1[f(x) != y], for label-only models, a correct answer counts more
the rarer it is. With R references there are at most 2 R + 1 distinct reference scores.

Both functions take the target's losses [n] or [S, n], those of R references [R, n], and bool [R, n], True if
the reference was trained on the example (None: all False). They return float64 of the shape of `loss`, and
raise a `UsageError` for shapes that do not fit, or an example that every reference was trained on.
"""

from __future__ import annotations

import numpy as np

from jaxfed.privacy.membership.evidence import mean_over, outside


def difficulty_scores(
    loss: np.ndarray, reference_loss: np.ndarray, is_in: np.ndarray | None = None
) -> np.ndarray:
    """Mean loss of the references minus the target's."""
    expected = mean_over(reference_loss, outside(reference_loss, is_in))
    return expected - np.asarray(loss, np.float64)


def reference_scores(
    loss: np.ndarray, reference_loss: np.ndarray, is_in: np.ndarray | None = None
) -> np.ndarray:
    """Share of references with a larger loss; S R n comparisons."""
    own, others = np.asarray(loss, np.float64), np.asarray(reference_loss, np.float64)
    is_out = outside(others, is_in)
    rows = [mean_over((others > row) + (others == row) / 2, is_out) for row in np.atleast_2d(own)]
    return np.reshape(rows, own.shape)
