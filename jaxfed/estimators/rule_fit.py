"""RuleFit with the weakest penalty that leaves few rules, found in a few fits.

J. H. Friedman, B. E. Popescu. "Predictive learning via rule ensembles". Annals of Applied Statistics 2008.

    min over a, b of   sum_i log(1 + exp(-s_i (b + sum_r a_r r(x_i)))) C + |a|_1,        s_i = +-1

over rules r(x), 0 or 1, which are the paths from the roots of boosted trees. imodels, whose class this is,
takes C from a grid of a hundred values: it fits one after another from the strongest penalty on until more
than `max_rules` rules are left, and keeps the one before. What it fits near the end takes hundreds of times
as long as at the beginning, and where trees have no more rules than that it fits all of them. Here these
have the weakest penalty at once. Otherwise the number of rules is taken to fall as the penalty grows, as it
does but for a few of neighboring penalties: the search goes from the middle of the grid towards the weak end
by the line through the numbers of rules that it has seen.

Rules are applied to columns of numbers, not as queries that pandas parses and that take as long as a fit.

An example's probability is the model's own. imodels has softmax(1 - z, z), z = b + sum_r a_r r(x), where the
likelihood above says 1 / (1 + exp(-z)): it doubles what the model is sure of, and says class 1 from z = 1/2
on only, a probability of 0.62.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from imodels import RuleFitClassifier
from scipy.special import expit
from sklearn.utils.validation import check_array, check_is_fitted

_PENALTIES = np.logspace(4, -4, num=100)[:-1]  # imodels' own, 1 / C; it never takes its last
_FIRST, _STEP, _MOST = 48, 4, 12  # where the search begins, C = 0.75; its second step, its longest
_COMPARE = {"<=": operator.le, ">": operator.gt, "<": operator.lt, ">=": operator.ge}
_COUNTS = 1e-6  # a coefficient above this, over the mean of y, is one: imodels' threshold

_Scored = tuple[list[Any], list[float], Any]  # rules, coefficients, intercept


class RuleFit(RuleFitClassifier):
    """imodels' classifier of two classes; its keywords, of which `cv` says nothing here.

    Cost: some three to seven L1-penalized fits over n examples and the trees' rules, 2 to 4 a tree.
    """

    alpha: float | None  # the penalty; None: of `max_rules`

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
            # Places of the grid: at `few` as many rules as are wanted or fewer, at `many` more.
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
        """The place to try between two of the grid, by the numbers of rules at those tried."""
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


def _satisfied(columns: dict[str, np.ndarray], rule: str, num_examples: int) -> np.ndarray:
    """bool [n]; a rule is "X0 <= 0.5 and X3 > 2.0"."""
    hits = np.ones(num_examples, bool)
    for term in rule.split(" and "):
        name, sign, threshold = term.split(" ")
        if sign == "==":  # "X0 == X0", of a tree without a split: all examples were alike
            continue
        hits &= _COMPARE[sign](columns[name], float(threshold))
    return hits
