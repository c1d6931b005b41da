"""The white-box attack by gradient norms: training on x makes the gradient at x small.

    score(x) = -|grad_w loss(f_w(x), y)|

(After Nasr, Shokri, Houmansadr, S&P 2019, whose attack learns from gradients of all layers; this one uses
their norm.) Any party with the parameters can compute it: the server and the other clients if models are
averaged, no other party if labels are shared. Norms are inputs; the learner computes them.
"""

from __future__ import annotations

import numpy as np

from jaxfed.errors import UsageError


def scores(norms: np.ndarray) -> np.ndarray:
    """Scores, float64, from norms [n] or [S, n], of S models or rounds.

    Raises:
        UsageError: a norm below 0.
    """
    values = np.asarray(norms, np.float64)
    if (values < 0).any():
        raise UsageError("norms: one is below 0")
    return -values
