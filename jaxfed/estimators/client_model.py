"""One client's classifier: fitted on weighted examples of some classes, with predictions over all classes.

A client may have only some of the C classes. They are numbered 0..k-1 for its estimator, as XGBoost requires
and all others accept. Predictions are mapped back; the other classes have probability 0. With a single class
the model always predicts it, without an estimator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxfed.estimators.recipe import Recipe, one_line


class NoPredictionError(ValueError):
    """An estimator returns invalid predictions; the message describes them."""


class Task(NamedTuple):
    """Training task of one client's estimator.

    Fields:
        recipe: specification of the estimator.
        x: [n, ...], flattened row by row; bytes are read as [0, 1].
        y: int32 [n], classes.
        weight: float32 [n]; rows of weight 0 are left out. If the estimator's `fit` takes no weights,
            all others have weight one.
        seed: of its random numbers.
        threads: for fitting a forest; they do not change the model.
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
        estimator: of the classes 0..k-1; None for a single class.
        classes: int32 [k], numbers of these classes among all C.
        train_accuracy: accuracy on its training rows.
        warnings: its warnings, one line each.
    """

    estimator: Any
    classes: np.ndarray
    train_accuracy: float = 1.0
    warnings: tuple[str, ...] = ()

    def labels(self, x: np.ndarray) -> np.ndarray:
        """The classes of examples [n, ...], int32 [n].

        Raises:
            NoPredictionError: the estimator returns something else.
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
        """float32 [n, C], 0 for classes that it has not seen.

        Raises:
            NoPredictionError: the estimator returns something else.
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
    """Fit one estimator, and check its predictions on the training rows.

    It runs in one thread, so a task gives the same model everywhere, and one process per core shares the
    machine fairly. (A forest's trees do not depend on the number of threads; it uses idle cores.)

    Raises:
        NoPredictionError: invalid predictions.
        Exception: any error of the estimator.
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
            estimator.set_params(n_jobs=1)  # threads would add votes in any order
        model = ClientModel(estimator, classes)
        accuracy = float(np.mean(model.labels(x) == y))
        if recipe.has_probabilities:
            model.probabilities(x, int(classes[-1]) + 1)
    lines = dict.fromkeys(one_line(each.message) for each in warned)
    told = tuple(line for line in lines if not line.startswith(recipe.harmless))
    return model._replace(train_accuracy=accuracy, warnings=told)


def fitted_or_why(task: Task) -> ClientModel | str:
    """The fitted model, or the error in one line."""
    try:
        return fitted(task)
    except NoPredictionError as error:
        return one_line(error)
    except Exception as error:  # any error of an estimator
        return f"{type(error).__name__}: {one_line(error)}"


def _table(x: np.ndarray) -> np.ndarray:
    """Rows of numbers, [n, d]."""
    flat = np.asarray(x).reshape(len(x), -1)
    if flat.dtype == np.uint8:
        return flat.astype(np.float32) / 255
    return flat if np.issubdtype(flat.dtype, np.floating) else flat.astype(np.float32)


class OneVsRest:
    """k binary estimators, each for one of the classes 0..k-1 against the rest, with the interface of one.

    p_c = P_c(x) / sum_c' P_c'(x), P_c by class c's estimator; label = argmax_c p_c, the first of equals.
    """

    def __init__(self, make: Callable[[], Any], num_classes: int) -> None:
        self._estimators = [make() for _ in range(num_classes)]

    def fit(self, x: np.ndarray, y: np.ndarray, **weights: np.ndarray) -> OneVsRest:
        """Fit each estimator on its class, 1, against the others, 0."""
        for number, estimator in enumerate(self._estimators):
            estimator.fit(x, (y == number).astype(np.int32), **weights)
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """Probabilities, float64 [n, k]; 1 / k each if all estimators give 0."""
        own = np.stack([one.predict_proba(x)[:, 1] for one in self._estimators], axis=1)
        total = own.sum(axis=1, keepdims=True)
        return np.divide(own, total, out=np.full_like(own, 1 / own.shape[1]), where=total > 0)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Labels, int64 [n]."""
        return self.predict_proba(x).argmax(axis=1)
