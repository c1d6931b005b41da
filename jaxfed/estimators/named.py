"""Recipes by name: the estimators of FedCT's Table 2, and any other of their kind.

FedCT (arXiv 2310.05696, E.3) states these settings: trees split by the Gini index, with at least 2 samples to
split; RuleFit has a tree size of 4 and at most 200 rules. All others are the libraries' defaults, as in the
authors' code.
"""

from __future__ import annotations

from typing import Any

from jaxfed.estimators.recipe import Recipe
from jaxfed.rules import POSITIVE, at_least, keywords


@keywords(max_depth=at_least(0, ", 0 is no bound"))
def decision_tree(*, max_depth: int = 0) -> Recipe:
    """One tree (CART by the Gini index; scikit-learn's).

    Args:
        max_depth: largest depth; 0: no bound.
    """
    settings = {"max_depth": max_depth or None}
    return Recipe("decision_tree", "sklearn.tree.DecisionTreeClassifier", settings)


@keywords(num_trees=at_least(1), max_depth=at_least(0, ", 0 is no bound"))
def random_forest(*, num_trees: int = 100, max_depth: int = 0) -> Recipe:
    """Trees on bootstrap samples, with random features at each split (Breiman 2001; scikit-learn's).

    Args:
        num_trees: number of trees.
        max_depth: largest depth; 0: no bound.
    """
    settings = {"n_estimators": num_trees, "max_depth": max_depth or None}
    return Recipe("random_forest", "sklearn.ensemble.RandomForestClassifier", settings)


@keywords(num_trees=at_least(1), max_depth=at_least(1), learning_rate=POSITIVE)
def xgboost(*, num_trees: int = 100, max_depth: int = 6, learning_rate: float = 0.3) -> Recipe:
    """Gradient boosting of trees (Chen, Guestrin, KDD 2016; XGBoost's, whose defaults these are).

    Needs requirements-learners.txt. The authors' code sets the objective for two classes, whatever their
    number; here XGBoost chooses it.

    Args:
        num_trees: number of boosting rounds.
        max_depth: largest depth of a tree.
        learning_rate: shrinkage of each tree.
    """
    settings = {"n_estimators": num_trees, "max_depth": max_depth, "learning_rate": learning_rate}
    return Recipe("xgboost", "xgboost.XGBClassifier", settings)


@keywords(tree_size=at_least(2), max_rules=at_least(1))
def rulefit(*, tree_size: int = 4, max_rules: int = 200) -> Recipe:
    """Rules of boosted trees under an L1-penalized logistic regression (Friedman, Popescu 2008; imodels').

    Needs requirements-learners.txt. More than two classes are fitted one against the rest. It takes no
    weights: public rows of any weight above 0 count as much as own ones. The authors use another
    implementation, the package rulefit, without linear terms.

    The penalty is the smallest one that leaves `max_rules` rules, as in imodels, found in fewer fits
    (`jaxfed.estimators.rule_fit`). imodels' documentation has cross-validation as the default; up to 3.0.4
    the result of its folds is not used.

    Args:
        tree_size: number of leaves of the trees that give the rules.
        max_rules: largest number of rules.
    """
    settings = {"tree_size": tree_size, "max_rules": max_rules, "include_linear": False}
    # scikit-learn 1.8 and 1.9 warn about the old name of the L1 penalty that imodels uses.
    old_name = ("'penalty' was deprecated", "Inconsistent values: penalty=l1 with l1_ratio=0.0")
    return Recipe(
        "rulefit",
        "jaxfed.estimators.rule_fit.RuleFit",
        settings,
        is_binary=True,
        harmless=old_name,
        derived_from="imodels",
    )


@keywords(inverse_penalty=POSITIVE, max_steps=at_least(1))
def logistic_regression(*, inverse_penalty: float = 1.0, max_steps: int = 1000) -> Recipe:
    """Multinomial, losses' sum + |w|^2 / (2 c) with c = `inverse_penalty` (scikit-learn's).

    Features are standardized by means and deviations of the training rows.

    Args:
        inverse_penalty: c; larger values regularize less.
        max_steps: largest number of the solver's steps.
    """
    settings = {"C": inverse_penalty, "max_iter": max_steps}
    path = "sklearn.linear_model.LogisticRegression"
    return Recipe("logistic_regression", path, settings, is_scaled=True)


def by_path(*, estimator: str, is_scaled: bool = False, **settings: Any) -> Recipe:
    """A classifier by the dotted name of its class, "sklearn.svm.SVC", and its own keywords.

    Only classes of `sklearn`, `xgboost` and `imodels`, so a config cannot run arbitrary code.

    Args:
        estimator: dotted name of the class; its own keywords are keys as well.
        is_scaled: standardize features first.
        **settings: the class's own keywords.
    """
    return Recipe(estimator.rpartition(".")[2], estimator, settings, is_scaled=is_scaled)
