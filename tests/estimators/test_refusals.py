"""What recipes of estimators refuse, and what is wrong with a fit."""

import sys
from unittest import mock

import refusals

from jaxfed.estimators.client_model import EstimatorSpec
from jaxfed.learners import refitting


def without(package, make):
    with mock.patch.dict(sys.modules, {package: None}):
        make(num_classes=3)


def path(name, **settings):
    return lambda: refitting.estimator(num_classes=3, estimator=name, **settings)


test_refused = refusals.table(
    {
        "estimator='os.path.join': use a class of sklearn": path("os.path.join"),
        "estimator='sklearn.svm.SVX': there is no such class": path("sklearn.svm.SVX"),
        "estimator='sklearn.linear_model.Ridge': is no classifier": path(
            "sklearn.linear_model.Ridge"
        ),
        "estimator='sklearn.svm.SVC': ...keyword argument 'c'": path("sklearn.svm.SVC", c=3),
        "estimator='sklearn.svm.SVC': The 'C' parameter of SVC must be": path(
            "sklearn.svm.SVC", C=-1.0
        ),
        "estimator='sklearn.naive_bayes': ": lambda: EstimatorSpec("mine", "sklearn.naive_bayes"),
        "decision_tree.max_depth=-1: use": lambda: refitting.decision_tree(
            num_classes=3, max_depth=-1
        ),
        "xgboost: needs xgboost, which is not installed: pip install -r requirements-learners.txt": (
            lambda: without("xgboost", refitting.xgboost)
        ),
        "rulefit: needs imodels, which": lambda: without("imodels", refitting.rulefit),
    }
)
