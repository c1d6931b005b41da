"""The gap attack: who is classified rightly is taken for a member; of labels alone.

    score(x) = 1[f(x) = y],     AUC = 1/2 + (accuracy on members - accuracy on others) / 2      exactly

(Yeom et al., CSF 2018; the baseline of Choquette-Choo et al., ICML 2021.) What a client that shares hard
labels of examples shows of them, whatever its learner is.
"""

from __future__ import annotations

import numpy as np


def scores(predicted: np.ndarray, label: np.ndarray) -> np.ndarray:
    """float64 of predicted labels [n] or [S, n] and the true ones [n]: 0 or 1."""
    return (np.asarray(predicted) == np.asarray(label)).astype(np.float64)


def auc_of(accuracy_on_members: float, accuracy_on_others: float) -> float:
    """The AUC of this attack."""
    return 0.5 + (accuracy_on_members - accuracy_on_others) / 2
