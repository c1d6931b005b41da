"""The loss threshold (Yeom, Giacomelli, Fredrikson, Jha, CSF 2018): members are fitted better.

    score(x) = -loss(f(x), y),     member where loss <= threshold

One threshold for all, theirs the mean training loss. An example that is hard for every model looks like one
that was never seen, which `reference`, `lira` and `rmia` mend.
"""

from __future__ import annotations

import numpy as np


def scores(loss: np.ndarray) -> np.ndarray:
    """float64 of losses [n] or [S, n]."""
    return -np.asarray(loss, np.float64)
