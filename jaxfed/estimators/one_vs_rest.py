"""Multiclass classification with a binary estimator: each class against the rest.

    p_c = P_c(x) / sum_c' P_c'(x),     label = argmax_c p_c       (the first of equals)

P_c is the probability of class c by its estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class OneVsRest:
    """k estimators for k classes, 0..k-1, with the interface of one."""

    def __init__(self, make: Callable[[], Any], num_classes: int) -> None:
        self._estimators = [make() for _ in range(num_classes)]

    def fit(self, x: np.ndarray, y: np.ndarray, **weights: np.ndarray) -> OneVsRest:
        """Fit each estimator on its class, 1, against the others, 0."""
        for number, estimator in enumerate(self._estimators):
            estimator.fit(x, (y == number).astype(np.int32), **weights)
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """Probabilities, float64 [n, k]; 1 / k each if all estimators give 0."""
        own = np.stack([one.predict_proba(x)[:, 1] for one in self._estimators], axis=1)
        total = own.sum(axis=1, keepdims=True)
        return np.divide(own, total, out=np.full_like(own, 1 / own.shape[1]), where=total > 0)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Labels, int64 [n]."""
        return self.predict_proba(x).argmax(axis=1)
