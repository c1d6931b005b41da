"""The gap attack: correctly classified examples count as members; it needs labels alone.

    score(x) = 1[f(x) = y],     AUC = 1/2 + (accuracy on members - accuracy on others) / 2      exactly

(Yeom et al., CSF 2018; the baseline of Choquette-Choo et al., ICML 2021.) The leakage
of a client that shares hard labels of examples, for any learner.
"""

from __future__ import annotations

import numpy as np


def scores(predicted: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Scores 0 or 1, float64, from predicted labels [n] or [S, n] and the true ones [n]."""
    return (np.asarray(predicted) == np.asarray(label)).astype(np.float64)


def auc_of(accuracy_on_members: float, accuracy_on_others: float) -> float:
    """The AUC of this attack."""
    return 0.5 + (accuracy_on_members - accuracy_on_others) / 2
