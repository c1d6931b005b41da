"""RuleFit with the weakest penalty that leaves few rules, found in a few fits.

J. H. Friedman, B. E. Popescu. "Predictive learning via rule ensembles". Annals of Applied Statistics 2008.

    min over a, b of   sum_i log(1 + exp(-s_i (b + sum_r a_r r(x_i)))) C + |a|_1,        s_i = +-1

over rules r(x), 0 or 1, the paths from the roots of boosted trees. The class extends imodels' in three ways:

* The choice of C. imodels has a grid of a hundred penalties. It fits one after another, from the strongest,
  until more than `max_rules` rules are left, and selects the one before. The last fits take hundreds of times
  as long as the first; if the trees have fewer rules than that, it fits all hundred. Here such trees get the
  weakest penalty at once. Otherwise the search assumes that the number of rules falls as the penalty grows,
  which is true except for a few neighboring penalties. It goes from the middle of the grid to the weak end,
  by linear extrapolation of the numbers of rules.
* Rules are evaluated on NumPy columns. imodels has pandas parse them as queries, as slow as a fit.
* The probability of class 1 is 1 / (1 + exp(-z)), z = b + sum_r a_r r(x), as in the likelihood above. imodels
  has softmax(1 - z, z): it doubles the log-odds, and predicts class 1 only from z = 1/2 on, a probability of
  0.62.

With more than two classes there is one such model for each class against the rest, with probabilities P_c:
p_c = P_c(x) / sum_c' P_c'(x), and the label is argmax_c p_c, the first of equals.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from imodels import RuleFitClassifier
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_array, check_is_fitted

_PENALTIES = np.logspace(4, -4, num=100)[:-1]  # imodels' own, 1 / C; it never takes its last
_FIRST, _STEP, _MOST = 48, 4, 12  # where the search begins, C = 0.75; its second step, its longest
_COMPARE = {"<=": operator.le, ">": operator.gt, "<": operator.lt, ">=": operator.ge}
_COUNTS = 1e-6  # a coefficient above this, over the mean of y, is one: imodels' threshold

# scikit-learn 1.8 and 1.9 warn about the old name of the L1 penalty that imodels uses.
_OLD_NAME = r"\s*('penalty' was deprecated|Inconsistent values: penalty=l1 with l1_ratio=0\.0)"

_Scored = tuple[list[Any], list[float], Any]  # rules, coefficients, intercept


class BinaryRuleFit(RuleFitClassifier):
    """imodels' classifier of two classes, with its keywords; `cv` has no effect.

    Cost: some three to seven L1-penalized fits over n examples and the trees' rules, 2 to 4 a tree.
    """

    alpha: float | None  # the penalty; None: chosen by `max_rules`

    def transform(self, X: np.ndarray, rules: Iterable[str]) -> np.ndarray:
        """float64 [n, R]: 1 where an example satisfies the rule."""
        columns = dict(zip(self.feature_placeholders, np.asarray(X, np.float64).T, strict=True))
        hits = [_satisfied(columns, rule, len(X)) for rule in rules]
        return np.stack(hits, axis=1).astype(np.float64) if hits else np.zeros((len(X), 0))

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """float64 [n, 2]: 1 - p and p = 1 / (1 + exp(-z)); `predict` takes the larger."""
        check_is_fitted(self)
        positive = expit(self._predict_continuous_output(check_array(X)))
        return np.stack([1 - positive, positive], axis=1)

    def _eval_weighted_rule_sum(self, X: np.ndarray) -> np.ndarray:
        """float64 [n]: sum_r a_r r(x)."""
        rules = self.rules_without_feature_names_
        coefficients = np.array([rule.args[0] for rule in rules])
        return self.transform(X, map(str, rules)) @ coefficients

    def _score_rules(self, X: np.ndarray, y: np.ndarray, rules: list[str]) -> _Scored:
        """Rules with a coefficient under the weakest penalty that leaves no more than `max_rules`."""
        if self.alpha is not None:
            return super()._score_rules(X, y, rules)
        try:
            most = len(rules) + (X.shape[1] if self.include_linear else 0)
            if most <= self.max_rules:
                return self._penalized(X, y, rules, _PENALTIES[-1])
            # Positions in the grid: at `few` up to `max_rules` rules, at `many` more.
            few, many = 0, len(_PENALTIES)
            best: _Scored | None = None
            numbers: dict[int, int] = {}
            while many - few > 1 or best is None:
                tried = self._next(few, many, numbers)
                scored = self._penalized(X, y, rules, _PENALTIES[tried])
                numbers[tried] = self._number(scored, y)
                if tried == 0 or numbers[tried] <= self.max_rules:
                    few, best = tried, scored
                else:
                    many = tried
            return best
        finally:
            self.alpha = None

    def _next(self, few: int, many: int, numbers: dict[int, int]) -> int:
        """The next position between two of the grid, by the numbers of rules at those tried."""
        if not numbers:
            return _FIRST
        if few not in numbers:
            return many // 2
        if len(numbers) < 2:
            return few + _STEP
        left, right = (few, many) if many in numbers else (min(numbers), few)
        slope = (numbers[right] - numbers[left]) / (right - left)
        ahead = (self.max_rules - numbers[few]) / slope if slope > 0 else _MOST
        return min(few + min(max(int(ahead), 1), _MOST), many - 1)

    def _penalized(self, X: np.ndarray, y: np.ndarray, rules: list[str], penalty: float) -> _Scored:
        self.alpha = float(penalty)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Ignoring max_rules")  # which chose the penalty
            return super()._score_rules(X, y, rules)

    @staticmethod
    def _number(scored: _Scored, y: np.ndarray) -> int:
        """Rules, and linear terms where there are any, that count."""
        return int(np.count_nonzero(np.abs(scored[1]) > _COUNTS / np.mean(np.abs(y))))


class RuleFit(ClassifierMixin, BaseEstimator):
    """RuleFit without linear terms, of classes 0..k-1.

    Args:
        tree_size: number of leaves of the trees that give the rules.
        max_rules: largest number of rules.
        random_state: seed of the trees.
    """

    def __init__(
        self, tree_size: int = 4, max_rules: int = 200, random_state: int | None = None
    ) -> None:
        self.tree_size, self.max_rules, self.random_state = tree_size, max_rules, random_state

    def fit(self, X: np.ndarray, y: np.ndarray) -> RuleFit:
        """Fit on y, or with more than two classes each class, 1, against the others, 0."""
        self.classes_ = np.unique(y)
        several = len(self.classes_) > 2
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _OLD_NAME)
            targets = [(y == c).astype(np.int32) for c in self.classes_] if several else [y]
            self.models_ = [
                BinaryRuleFit(**self.get_params(), include_linear=False).fit(X, target)
                for target in targets
            ]
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Probabilities, float64 [n, k]; 1 / k each if all models give 0."""
        if len(self.models_) == 1:
            return self.models_[0].predict_proba(X)
        p = np.stack([one.predict_proba(X)[:, 1] for one in self.models_], axis=1)
        total = p.sum(axis=1, keepdims=True)
        return np.divide(p, total, out=np.full_like(p, 1 / p.shape[1]), where=total > 0)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Labels, int64 [n]."""
        return self.predict_proba(X).argmax(axis=1)


def _satisfied(columns: dict[str, np.ndarray], rule: str, num_examples: int) -> np.ndarray:
    """bool [n]; a rule is "X0 <= 0.5 and X3 > 2.0"."""
    hits = np.ones(num_examples, bool)
    for term in rule.split(" and "):
        name, sign, threshold = term.split(" ")
        if sign == "==":  # "X0 == X0", of a tree without a split: all examples were alike
            continue
        hits &= _COMPARE[sign](columns[name], float(threshold))
    return hits
