"""One client's classifier: fitted on weighted examples of some classes, with predictions over all classes.

`EstimatorSpec("tree", "sklearn.tree.DecisionTreeClassifier", {"max_depth": 4})` names a class of
scikit-learn, XGBoost or imodels; `fitted(Task(spec, x, y, weight, seed))` is a `ClientModel`.

A client may have only some of the C classes. They are numbered 0..k-1 for its estimator, as XGBoost requires
and all others accept. Predictions are mapped back; the other classes have probability 0. With a single class
the model always predicts it, without an estimator.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from jaxfed.errors import UsageError

# Package -> its requirements file.
_PACKAGES = {
    "sklearn": "requirements.txt",
    "xgboost": "requirements-learners.txt",
    "imodels": "requirements-learners.txt",
}

RULE_FIT = "jaxfed.estimators.rule_fit.RuleFit"  # extends a class of imodels


@dataclass(frozen=True)
class EstimatorSpec:
    """Specification of each client's estimator.

    Raises:
        UsageError: another package or one that is not installed, a name that is not a classifier in it,
            keywords or values that it does not accept.
    """

    name: str  # the learner's, for messages
    path: str  # the class, "sklearn.tree.DecisionTreeClassifier"; of the packages above, or `RULE_FIT`
    settings: Mapping[str, Any] = field(default_factory=dict)  # its keywords

    def __post_init__(self) -> None:
        """Build one estimator, so errors appear before any client trains."""
        from sklearn.base import is_classifier

        made = self.estimator(seed=0)
        if not is_classifier(made):
            raise self._refused("is no classifier")
        # scikit-learn validates values only in `fit`: every client of every round would report an error.
        if hasattr(made, "_parameter_constraints") and hasattr(made, "_validate_params"):
            try:
                made._validate_params()
            except ValueError as error:
                raise self._refused(one_line(error)) from error

    def estimator(self, seed: int) -> Any:
        """Return a new, unfitted estimator; all its randomness comes from the seed."""
        made_of = self._class()
        settings = dict(self.settings)
        if self.path.startswith("xgboost."):
            settings.setdefault("n_jobs", 1)  # processes, not threads, share the cores
        try:
            made = made_of(**settings)
        except TypeError as error:
            raise self._refused(one_line(error)) from error
        random = [
            name
            for name, value in made.get_params().items()
            if name.rpartition("__")[2] == "random_state" and value is None
        ]
        return made.set_params(**dict.fromkeys(random, seed))

    @property
    def has_probabilities(self) -> bool:
        """True if estimators of this kind predict probabilities."""
        return hasattr(self.estimator(seed=0), "predict_proba")

    def _class(self) -> Any:
        module, _, name = self.path.rpartition(".")
        package = "imodels" if self.path == RULE_FIT else module.partition(".")[0]
        if package not in _PACKAGES:
            allowed = f"use a class of {', '.join(_PACKAGES)}"
            raise self._refused(allowed=allowed)
        try:
            import_module(package)
        except ImportError as error:
            raise UsageError(
                f"{self.name}: needs {package}, which is not installed: pip install -r {_PACKAGES[package]}"
            ) from error
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise self._refused("there is no such class") from error

    def _refused(self, wrong: str = "", allowed: str = "") -> UsageError:
        return UsageError(wrong, key="estimator", value=self.path, allowed=allowed)


class Task(NamedTuple):
    """Training task of one client's estimator.

    Rows of weight 0 are left out. If the estimator's `fit` takes no weights, all others have weight one.
    """

    spec: EstimatorSpec
    x: np.ndarray  # [n, ...], flattened row by row; bytes are read as [0, 1]
    y: np.ndarray  # int32 [n], classes
    weight: np.ndarray  # float32 [n]
    seed: int


class ClientModel(NamedTuple):
    """A fitted estimator; a `ValueError` says which of its predictions are invalid."""

    estimator: Any  # of the classes 0..k-1; None for a single class
    classes: np.ndarray  # int32 [k], numbers of these classes among all C
    fit_accuracy: float = 1.0  # on its training rows
    warnings: tuple[str, ...] = ()  # one line each

    def labels(self, x: np.ndarray) -> np.ndarray:
        """The classes of examples [n, ...], int32 [n]."""
        if self.estimator is None or not len(x):
            return np.full(len(x), self.classes[0], np.int32)
        answer = np.asarray(self.estimator.predict(_table(x)))
        if answer.shape != (len(x),):
            raise ValueError(f"predicts an array {answer.shape} for {len(x)} examples")
        known = np.isin(answer, np.arange(len(self.classes)))
        if not known.all():
            raise ValueError(f"predicts {answer[~known][0]!r}, a class that it was not given")
        return self.classes[answer.astype(np.int64)]

    def probabilities(self, x: np.ndarray, num_classes: int) -> np.ndarray:
        """float32 [n, C], 0 for classes that it has not seen."""
        spread = np.zeros((len(x), num_classes), np.float32)
        if self.estimator is None or not len(x):
            spread[:, self.classes[0]] = 1
            return spread
        answer = np.asarray(self.estimator.predict_proba(_table(x)))
        if answer.shape != (len(x), len(self.classes)):
            raise ValueError(
                f"has scores {answer.shape} for {len(x)} examples of {len(self.classes)} classes"
            )
        if not np.isfinite(answer).all():
            raise ValueError("has scores that are nan or infinite")
        spread[:, self.classes] = answer
        return spread


def fitted(task: Task) -> ClientModel:
    """Fit one estimator, and check its predictions on the training rows.

    It runs in one thread, so a task gives the same model everywhere, and one process per core shares the
    machine fairly.
    """
    from sklearn.utils.validation import has_fit_parameter
    from threadpoolctl import threadpool_limits

    spec, counts = task.spec, task.weight > 0
    x, y, weight = _table(task.x)[counts], task.y[counts], task.weight[counts]
    classes, class_number = np.unique(y, return_inverse=True)
    classes = classes.astype(np.int32)
    if len(classes) == 1:
        return ClientModel(None, classes)
    estimator = spec.estimator(task.seed)
    weights = {"sample_weight": weight} if has_fit_parameter(estimator, "sample_weight") else {}
    with threadpool_limits(1), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        estimator.fit(x, class_number.astype(np.int32), **weights)
        model = ClientModel(estimator, classes)
        accuracy = float(np.mean(model.labels(x) == y))
        if spec.has_probabilities:
            model.probabilities(x, int(classes[-1]) + 1)
    lines = tuple(dict.fromkeys(one_line(each.message) for each in warned))
    return model._replace(fit_accuracy=accuracy, warnings=lines)


def fitted_or_why(task: Task) -> ClientModel | str:
    """The fitted model, or the error in one line."""
    try:
        return fitted(task)
    except Exception as error:  # any error of an estimator
        return reason(error)


def reason(error: Exception) -> str:
    """Kind and message of an error in one line."""
    return f"{type(error).__name__}: {one_line(error)}"


def _table(x: np.ndarray) -> np.ndarray:
    """Rows of numbers, [n, d]."""
    flat = np.asarray(x).reshape(len(x), -1)
    if flat.dtype == np.uint8:
        return flat.astype(np.float32) / 255
    return flat if np.issubdtype(flat.dtype, np.floating) else flat.astype(np.float32)


def one_line(error: object) -> str:
    """Text of an error or a warning in one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
