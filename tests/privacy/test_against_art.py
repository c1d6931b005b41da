"""Against adversarial-robustness-toolbox, where it is installed: the gap attack, and thresholds on losses."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from jaxfed.privacy.membership import area_under_curve

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of frameworks that it can do without
    peer = pytest.importorskip(
        "art.attacks.inference.membership_inference",
        reason="adversarial-robustness-toolbox is not installed",
    )
    from art.estimators.classification import SklearnClassifier
    from art.estimators.classification.scikitlearn import ScikitlearnLogisticRegression

    class WithLoss(ScikitlearnLogisticRegression):
        """Of scikit-learn's models theirs knows no losses; these are from its own probabilities."""

        def compute_loss(self, x, y, **kwargs):
            return losses_of(self.predict(x), np.argmax(y, axis=1))


HALF = 400


def losses_of(probabilities, label):
    return -np.log(probabilities[np.arange(len(label)), label])


@pytest.fixture
def digits():
    """Members, and as many others."""
    x, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(x))[: 2 * HALF]
    return x[rows].astype(np.float32), y[rows], np.arange(2 * HALF) < HALF


def test_the_gap_attack_is_its_rule_based_one(digits):
    x, y, is_member = digits
    tree = DecisionTreeClassifier(random_state=0).fit(x[is_member], y[is_member])
    attack = peer.MembershipInferenceBlackBoxRuleBased(SklearnClassifier(tree))
    theirs = np.asarray(attack.infer(x, y)).reshape(-1)
    ours = (tree.predict(x) == y).astype(float)
    np.testing.assert_array_equal(ours, theirs)
    assert area_under_curve(ours, is_member).auc > 0.55


def test_the_loss_threshold_orders_as_its_attack_learnt_from_losses(digits):
    """Its attack is a logistic regression on loss and class: of one class its order is the threshold's."""
    x, y, is_member = digits
    model = LogisticRegression(C=1e4, max_iter=3000).fit(x[is_member], y[is_member])
    known = np.arange(len(x)) % 2 == 0  # what their attacker learns from
    attack = peer.MembershipInferenceBlackBox(
        WithLoss(model), input_type="loss", attack_model_type="lr"
    )
    attack.fit(
        x=x[known & is_member],
        y=y[known & is_member],
        test_x=x[known & ~is_member],
        test_y=y[known & ~is_member],
    )
    rest = ~known
    theirs = attack.infer(x[rest], y[rest], probabilities=True).reshape(-1)
    ours = -losses_of(model.predict_proba(x[rest]), y[rest])
    assert area_under_curve(ours, is_member[rest]).auc > 0.52
    for c in range(10):
        own = y[rest] == c
        assert np.all(np.diff(theirs[own][np.argsort(ours[own])]) >= -1e-6)
