"""RuleFit's rules and penalty against imodels' own, which goes through the whole grid."""

import numpy as np
import pytest

pytest.importorskip("imodels")

from imodels import RuleFitClassifier

from jaxfed.estimators.rule_fit import BinaryRuleFit, RuleFit

RNG = np.random.default_rng(0)
X = RNG.standard_normal((150, 4)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] + 0.5 * X[:, 2] + 0.3 * RNG.standard_normal(150) > 0).astype(np.int32)
NEW = RNG.standard_normal((60, 4)).astype(np.float32)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def models(**settings):
    settings = {"n_estimators": 20, "include_linear": False, "random_state": 0, **settings}
    theirs = RuleFitClassifier(**settings, cv=False)
    return BinaryRuleFit(**settings).fit(X, Y), theirs.fit(X, Y)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_rules": 1},
        {"max_rules": 10},
        {"max_rules": 25},
        {"max_rules": 10, "include_linear": True},
        {"max_rules": 500},  # more than the trees have
        {"alpha": 2.0},
    ],
    ids=str,
)
def test_the_same_rules_as_imodels(settings):
    ours, theirs = models(**settings)
    assert [str(rule) for rule in ours.rules_] == [str(rule) for rule in theirs.rules_]
    z = theirs._predict_continuous_output(NEW)
    np.testing.assert_allclose(ours._predict_continuous_output(NEW), z, rtol=1e-6, atol=1e-12)


def test_probabilities_are_those_of_the_likelihood():
    ours, _ = models(max_rules=25)
    x = ours.transform(X, [str(rule) for rule in ours.rules_without_feature_names_])
    z = x @ [rule.args[0] for rule in ours.rules_without_feature_names_] + ours.intercept
    positive = ours.predict_proba(X)[:, 1]
    np.testing.assert_allclose(positive, 1 / (1 + np.exp(-z)), rtol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_array_equal(ours.predict(X), (z > 0).astype(int))
    assert np.any((z > 0) & (z < 0.5))  # which imodels gives to class 0


@pytest.mark.parametrize("max_rules", [5, 15, 40])
def test_fits_are_few(monkeypatch, max_rules):
    tried = []
    fit = BinaryRuleFit._penalized
    monkeypatch.setattr(
        BinaryRuleFit,
        "_penalized",
        lambda self, X, y, rules, penalty: tried.append(penalty) or fit(self, X, y, rules, penalty),
    )
    model = models(max_rules=max_rules)[0]
    assert 2 <= len(tried) <= 10
    assert len(set(tried)) == len(tried)
    assert 0 < len(model.rules_) <= max_rules
    assert model.alpha is None  # it is no setting of the next fit


def test_rules_hold_where_pandas_says_so():
    ours, _ = models(max_rules=25)
    rules = [str(rule) for rule in ours.rules_without_feature_names_]
    expected = RuleFitClassifier.transform(ours, NEW, rules)
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(ours.transform(NEW, rules), expected)
    np.testing.assert_array_equal(ours.transform(NEW, []), np.zeros((60, 0)))


def test_two_classes_are_one_model_and_more_are_one_against_the_rest():
    settings = {"tree_size": 4, "max_rules": 10, "random_state": 0}

    def binary(y):
        return BinaryRuleFit(**settings, include_linear=False).fit(X, y)

    two = RuleFit(**settings).fit(X, Y)
    np.testing.assert_array_equal(two.predict_proba(NEW), binary(Y).predict_proba(NEW))
    np.testing.assert_array_equal(two.predict(NEW), binary(Y).predict(NEW))
    labels = np.digitize(X[:, 0], [-0.5, 0.5]).astype(np.int32)
    own = np.stack(
        [binary((labels == c).astype(np.int32)).predict_proba(NEW)[:, 1] for c in range(3)], axis=1
    )
    three = RuleFit(**settings).fit(X, labels)
    np.testing.assert_allclose(three.predict_proba(NEW), own / own.sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(three.predict(NEW), own.argmax(axis=1))
