"""The loss threshold (Yeom, Giacomelli, Fredrikson, Jha, CSF 2018): members are fitted better.

    score(x) = -loss(f(x), y),     member where loss <= threshold

There is one threshold for all examples; the authors use the mean training loss. An example that is hard for
every model looks like a non-member; `reference`, `lira` and `rmia` correct this.
"""

from __future__ import annotations

import numpy as np


def scores(loss: np.ndarray) -> np.ndarray:
    """Scores, float64, from losses [n] or [S, n]."""
    return -np.asarray(loss, np.float64)
