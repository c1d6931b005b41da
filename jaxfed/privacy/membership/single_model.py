"""Membership inference without other models: by correct predictions (gap), and by a threshold of the loss.

Gap (Yeom et al., CSF 2018; the baseline of Choquette-Choo et al., ICML 2021) needs labels alone:

    score(x) = 1[f(x) = y],     AUC = 1/2 + (accuracy on members - accuracy on others) / 2      exactly

It measures the leakage of a client that shares hard labels of examples, for any learner.

Loss threshold (Yeom, Giacomelli, Fredrikson, Jha, CSF 2018): members are fitted better.

    score(x) = -loss(f(x), y),     member where loss <= threshold

There is one threshold for all examples; the authors use the mean training loss. An example that is hard for
every model looks like a non-member; `reference`, `lira` and `rmia` correct this.
"""

from __future__ import annotations

import numpy as np


def gap_scores(predicted: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return 0 or 1, float64, from predicted labels [n] or [S, n] and the true ones [n]."""
    return (np.asarray(predicted) == np.asarray(label)).astype(np.float64)


def gap_auc(accuracy_on_members: float, accuracy_on_others: float) -> float:
    """Return the AUC of the gap attack."""
    return 0.5 + (accuracy_on_members - accuracy_on_others) / 2


def loss_scores(loss: np.ndarray) -> np.ndarray:
    """Return scores, float64, from losses [n] or [S, n]."""
    return -np.asarray(loss, np.float64)
