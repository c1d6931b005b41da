"""The white-box attack by gradient norms: a model that was trained on x hardly wants to change for it.

    score(x) = -|grad_w loss(f_w(x), y)|

(After Nasr, Shokri, Houmansadr, S&P 2019, whose attack learns from gradients of all layers; this one takes
their length.) Who has the parameters can compute it: the server and the other clients where models are
averaged, nobody where labels are shared. Norms are given; how they are computed is the learner's matter.
"""

from __future__ import annotations

import numpy as np

from jaxfed.errors import UsageError


def scores(norms: np.ndarray) -> np.ndarray:
    """float64 of norms [n] or [S, n], of S models or rounds.

    Raises:
        UsageError: a norm below 0.
    """
    values = np.asarray(norms, np.float64)
    if (values < 0).any():
        raise UsageError("norms: one is below 0")
    return -values
