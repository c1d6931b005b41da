"""More than two classes by an estimator that knows two: each class against the rest.

    p_c = P_c(x) / sum_c' P_c'(x),     label = argmax_c p_c       (the first of equals)

P_c is the probability that the estimator of class c gives its own class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class OneVsRest:
    """k estimators for k classes, 0..k-1; it has the methods of one."""

    def __init__(self, make: Callable[[], Any], num_classes: int) -> None:
        self._estimators = [make() for _ in range(num_classes)]

    def fit(self, x: np.ndarray, y: np.ndarray, **weights: np.ndarray) -> OneVsRest:
        """Fit each to tell its class, 1, from the others, 0."""
        for number, estimator in enumerate(self._estimators):
            estimator.fit(x, (y == number).astype(np.int32), **weights)
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """float64 [n, k]; a k-th each where none thinks it has the example."""
        own = np.stack([one.predict_proba(x)[:, 1] for one in self._estimators], axis=1)
        total = own.sum(axis=1, keepdims=True)
        return np.divide(own, total, out=np.full_like(own, 1 / own.shape[1]), where=total > 0)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """int64 [n]."""
        return self.predict_proba(x).argmax(axis=1)
