"""Learners that fit an estimator: those of FedCT's Table 2, or any class with scikit-learn's interface.

FedCT (arXiv 2310.05696, E.3) states these settings: trees split by the Gini index, with at least 2 samples to
split; RuleFit has a tree size of 4 and at most 200 rules. All others are the libraries' defaults, as in the
authors' code. Every learner refits its clients' estimators in each round (`jaxfed.learners.refitting`, which
explains `num_classes` and `execution`).
"""

from __future__ import annotations

from typing import Annotated, Any

from jaxfed.estimators.client_model import RULE_FIT, Recipe
from jaxfed.federation.execution.settings import HERE, Execution
from jaxfed.learners.learner import Learner
from jaxfed.learners.refitting import refitting
from jaxfed.settings import Count, Ge, Note, NotNegative, Positive, hinted

_Depth = Annotated[int, Ge(0), Note("0 is no bound")]


@hinted
def decision_tree(
    *,
    num_classes: int,
    max_depth: _Depth = 0,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
) -> Learner:
    """One tree (CART by the Gini index; scikit-learn's).

    Args:
        max_depth: largest depth; 0: no bound.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
    """
    settings = {"max_depth": max_depth or None}
    recipe = Recipe("decision_tree", "sklearn.tree.DecisionTreeClassifier", settings)
    return refitting(recipe, num_classes, pseudo_weight, execution)


@hinted
def random_forest(
    *,
    num_classes: int,
    num_trees: Count = 100,
    max_depth: _Depth = 0,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
) -> Learner:
    """Trees on bootstrap samples, with random features at each split (Breiman 2001; scikit-learn's).

    Args:
        num_trees: number of trees.
        max_depth: largest depth; 0: no bound.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
    """
    settings = {"n_estimators": num_trees, "max_depth": max_depth or None}
    recipe = Recipe("random_forest", "sklearn.ensemble.RandomForestClassifier", settings)
    return refitting(recipe, num_classes, pseudo_weight, execution)


@hinted
def xgboost(
    *,
    num_classes: int,
    num_trees: Count = 100,
    max_depth: Count = 6,
    learning_rate: Positive = 0.3,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
) -> Learner:
    """Gradient boosting of trees (Chen, Guestrin, KDD 2016; XGBoost's, whose defaults these are).

    Needs requirements-learners.txt. The authors' code sets the objective for two classes, whatever their
    number; here XGBoost chooses it.

    Args:
        num_trees: number of boosting rounds.
        max_depth: largest depth of a tree.
        learning_rate: shrinkage of each tree.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
    """
    settings = {"n_estimators": num_trees, "max_depth": max_depth, "learning_rate": learning_rate}
    recipe = Recipe("xgboost", "xgboost.XGBClassifier", settings)
    return refitting(recipe, num_classes, pseudo_weight, execution)


@hinted
def rulefit(
    *,
    num_classes: int,
    tree_size: Annotated[int, Ge(2)] = 4,
    max_rules: Count = 200,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
) -> Learner:
    """Rules of boosted trees under an L1-penalized logistic regression (Friedman, Popescu 2008; imodels').

    Needs requirements-learners.txt. More than two classes are fitted one against the rest. It takes no
    weights: public rows of any weight above 0 count as much as the client's own. The authors use another
    implementation, the package rulefit, without linear terms.

    The penalty is the smallest one that leaves `max_rules` rules, as in imodels, found in fewer fits
    (`jaxfed.estimators.rule_fit`). imodels' documentation has cross-validation as the default; up to 3.0.4
    the result of its folds is not used.

    Args:
        tree_size: number of leaves of the trees that give the rules.
        max_rules: largest number of rules.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
    """
    recipe = Recipe("rulefit", RULE_FIT, {"tree_size": tree_size, "max_rules": max_rules})
    return refitting(recipe, num_classes, pseudo_weight, execution)


@hinted
def logistic_regression(
    *,
    num_classes: int,
    inverse_penalty: Positive = 1.0,
    max_steps: Count = 1000,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
) -> Learner:
    """Multinomial logistic regression: losses' sum + |w|^2 / (2 c), c = `inverse_penalty` (scikit-learn's).

    Features are standardized by means and deviations of the training rows.

    Args:
        inverse_penalty: c; larger values regularize less.
        max_steps: largest number of the solver's steps.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
    """
    settings = {"C": inverse_penalty, "max_iter": max_steps}
    path = "sklearn.linear_model.LogisticRegression"
    recipe = Recipe("logistic_regression", path, settings, is_scaled=True)
    return refitting(recipe, num_classes, pseudo_weight, execution)


@hinted
def estimator(
    *,
    num_classes: int,
    estimator: str,
    is_scaled: bool = False,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
    **settings: Any,
) -> Learner:
    """Any classifier, by the dotted name of its class, such as "sklearn.svm.SVC", and its keywords.

    Only classes of `sklearn`, `xgboost` and `imodels` are allowed, so a config cannot run arbitrary code.

    Args:
        estimator: dotted name of the class; keywords of this class are further keys.
        is_scaled: standardize features first.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
        **settings: keywords of the class.
    """
    recipe = Recipe(estimator.rpartition(".")[2], estimator, settings, is_scaled=is_scaled)
    return refitting(recipe, num_classes, pseudo_weight, execution)
