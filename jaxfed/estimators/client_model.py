"""One client's classifier: fitted on weighted examples of some of the classes, asked about all of them.

A client may have seen few of the C classes. Its estimator is given those that it has, as 0..k-1, which is
what XGBoost asks for and all others can work with; answers are mapped back, and the other classes have the
probability 0. Of a single class there is nothing to learn: the model says it always, without an estimator.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxfed.estimators.one_vs_rest import OneVsRest
from jaxfed.estimators.recipe import Recipe, one_line


class NoPredictionError(ValueError):
    """What an estimator answers is no prediction; the message says what it is."""


class Task(NamedTuple):
    """What one client's estimator is fitted on.

    Fields:
        recipe: what it is made from.
        x: [n, ...], flattened row by row; bytes are read as [0, 1].
        y: int32 [n], classes.
        weight: float32 [n]; rows of weight 0 are left out. Where the estimator's `fit` takes no weights,
            all others count one.
        seed: of its random numbers.
        threads: that a forest may be fitted in; the model is the same.
    """

    recipe: Recipe
    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    seed: int
    threads: int = 1


class ClientModel(NamedTuple):
    """A fitted estimator.

    Fields:
        estimator: of the classes 0..k-1; None where there was one class only.
        classes: int32 [k], which these are.
        train_accuracy: share of the rows it was fitted on that it is right about.
        warnings: what it warned of, one line each.
    """

    estimator: Any
    classes: np.ndarray
    train_accuracy: float = 1.0
    warnings: tuple[str, ...] = ()

    def labels(self, x: np.ndarray) -> np.ndarray:
        """The classes of examples [n, ...], int32 [n].

        Raises:
            NoPredictionError: the estimator answers something else.
        """
        if self.estimator is None or not len(x):
            return np.full(len(x), self.classes[0], np.int32)
        answer = np.asarray(self.estimator.predict(_table(x)))
        if answer.shape != (len(x),):
            raise NoPredictionError(f"predicts an array {answer.shape} for {len(x)} examples")
        known = np.isin(answer, np.arange(len(self.classes)))
        if not known.all():
            raise NoPredictionError(
                f"predicts {answer[~known][0]!r}, a class that it was not given"
            )
        return self.classes[answer.astype(np.int64)]

    def probabilities(self, x: np.ndarray, num_classes: int) -> np.ndarray:
        """float32 [n, C], 0 of classes that it has not seen.

        Raises:
            NoPredictionError: the estimator answers something else.
        """
        spread = np.zeros((len(x), num_classes), np.float32)
        if self.estimator is None or not len(x):
            spread[:, self.classes[0]] = 1
            return spread
        answer = np.asarray(self.estimator.predict_proba(_table(x)))
        if answer.shape != (len(x), len(self.classes)):
            raise NoPredictionError(
                f"has scores {answer.shape} for {len(x)} examples of {len(self.classes)} classes"
            )
        if not np.isfinite(answer).all():
            raise NoPredictionError("has scores that are nan or infinite")
        spread[:, self.classes] = answer
        return spread


def fitted(task: Task) -> ClientModel:
    """Fit one estimator, and see on its own rows that it predicts.

    One thread computes, so that the same task gives the same model wherever it runs, and as many processes
    as there are cores share them fairly. (A forest's trees are the same in several, where cores are left.)

    Raises:
        NoPredictionError: its answers are no predictions.
        Exception: whatever the estimator raises.
    """
    from threadpoolctl import threadpool_limits

    recipe, counts = task.recipe, task.weight > 0
    x, y, weight = _table(task.x)[counts], task.y[counts], task.weight[counts]
    classes, own = np.unique(y, return_inverse=True)
    classes = classes.astype(np.int32)
    if len(classes) == 1:
        return ClientModel(None, classes)
    make = partial(recipe.estimator, task.seed)
    estimator = make()
    keyword = recipe.weights_keyword(estimator)
    if recipe.is_binary and len(classes) > 2:
        estimator = OneVsRest(make, len(classes))
    with threadpool_limits(1), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if recipe.is_forest:
            estimator.set_params(n_jobs=task.threads)
        estimator.fit(x, own.astype(np.int32), **({keyword: weight} if keyword else {}))
        if recipe.is_forest:
            estimator.set_params(n_jobs=1)  # votes are added in the threads' order
        model = ClientModel(estimator, classes)
        accuracy = float(np.mean(model.labels(x) == y))
        if recipe.has_probabilities:
            model.probabilities(x, int(classes[-1]) + 1)
    lines = dict.fromkeys(one_line(each.message) for each in warned)
    told = tuple(line for line in lines if not line.startswith(recipe.harmless))
    return model._replace(train_accuracy=accuracy, warnings=told)


def fitted_or_why(task: Task) -> ClientModel | str:
    """A model, or in one line why there is none."""
    try:
        return fitted(task)
    except NoPredictionError as error:
        return one_line(error)
    except Exception as error:  # an estimator's own, of whatever kind
        return f"{type(error).__name__}: {one_line(error)}"


def _table(x: np.ndarray) -> np.ndarray:
    """Rows of numbers, [n, d]."""
    flat = np.asarray(x).reshape(len(x), -1)
    if flat.dtype == np.uint8:
        return flat.astype(np.float32) / 255
    return flat if np.issubdtype(flat.dtype, np.floating) else flat.astype(np.float32)
