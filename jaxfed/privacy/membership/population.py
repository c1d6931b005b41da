"""The population attack (attack P of Ye, Maddi, Murakonda, Bindschaedler, Shokri, CCS 2022).

    score(x) = share of a population Z with loss(z) > loss(x),    ties half,    z no members
    member where score >= 1 - alpha, that is where the loss is below the alpha-quantile of Z's: FPR alpha

All losses are the target model's, so no other model is needed. Scores are those of `single_model`,
converted to ranks in Z: the same curve, up to examples between which no z lies. The gain is a threshold with
a known false positive rate.
"""

from __future__ import annotations

import numpy as np

from jaxfed.errors import UsageError


def scores(loss: np.ndarray, population_loss: np.ndarray) -> np.ndarray:
    """Shares, float64.

    Args:
        loss: [n] or [S, n], of S models.
        population_loss: [m] or [S, m], of the same models.

    Raises:
        UsageError: no population, or another number of models.

    Cost: S (n + m) log m.
    """
    own, others = (np.asarray(each, np.float64) for each in (loss, population_loss))
    if not others.size or own.shape[:-1] != others.shape[:-1]:
        raise UsageError(
            f"losses {list(own.shape)}, of a population {list(others.shape)}: use [n] and [m], or "
            "[S, n] and [S, m], m >= 1"
        )
    pairs = zip(np.atleast_2d(own), np.sort(np.atleast_2d(others), axis=-1), strict=True)
    shares = [_share_above(row, ordered) for row, ordered in pairs]
    return np.reshape(shares, own.shape)


def _share_above(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    not_above = (
        np.searchsorted(ordered, values, side="left")
        + np.searchsorted(ordered, values, side="right")
    ) / 2
    return 1 - not_above / len(ordered)
