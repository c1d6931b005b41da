"""Classifiers of scikit-learn's kind that go wrong, each in its own way; one that shows what it is given."""

import numpy as np
import sklearn.dummy
from sklearn.base import BaseEstimator, ClassifierMixin


class Bad(ClassifierMixin, BaseEstimator):
    """Fails as `how` says where the first column has a value above 100; else it says class 0."""

    def __init__(self, how="raises", random_state=None):
        self.how = how
        self.random_state = random_state

    def fit(self, x, y):
        self.is_bad = (x[:, 0] > 100).any()
        self.num_classes = y.max() + 1
        if self.is_bad and self.how == "raises":
            raise RuntimeError("no split\nat all")
        return self

    def predict(self, x):
        answers = {
            "classes": np.full(len(x), 7),
            "fractions": np.full(len(x), 0.5),
            "length": np.zeros(len(x) + 1),
        }
        return answers.get(self.how if self.is_bad else "", np.zeros(len(x)))

    def predict_proba(self, x):
        spread = np.full((len(x), self.num_classes), 1 / self.num_classes)
        if self.is_bad and self.how == "nan":
            spread[0] = np.nan
        return spread[:, :1] if self.is_bad and self.how == "columns" else spread


class Recording(ClassifierMixin, BaseEstimator):
    """Writes down what it is fitted on; it has no probabilities."""

    def __init__(self, seen=None, random_state=None):
        self.seen = seen
        self.random_state = random_state

    def fit(self, x, y, sample_weight=None):
        self.seen.append((x, y, sample_weight, self.random_state))
        return self

    def predict(self, x):
        return np.zeros(len(x))


def install(monkeypatch):
    """Where recipes find them: `sklearn.dummy.Bad` and `sklearn.dummy.Recording`."""
    for estimator in (Bad, Recording):
        monkeypatch.setattr(sklearn.dummy, estimator.__name__, estimator, raising=False)
