"""Specification of an estimator: a class of scikit-learn, XGBoost or imodels by dotted name, and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from jaxfed.errors import UsageError

# Package -> its requirements file.
_PACKAGES = {
    "sklearn": "requirements.txt",
    "xgboost": "requirements-learners.txt",
    "imodels": "requirements-learners.txt",
}

# Forests with a seed per tree: the trees do not depend on the number of threads.
_FORESTS = ("sklearn.ensemble.RandomForestClassifier", "sklearn.ensemble.ExtraTreesClassifier")


@dataclass(frozen=True)
class Recipe:
    """Specification of each client's estimator.

    Attributes:
        name: the learner's, for messages.
        path: the class, "sklearn.tree.DecisionTreeClassifier"; of the packages above only.
        settings: its keywords.
        is_scaled: standardize examples first, by means and deviations of the training rows.
        is_binary: the class supports two classes only; more are fitted one against the rest.
        harmless: beginnings of warnings to suppress, as they do not affect the result.
        derived_from: the package of the class that ours extends; "" if the path shows it.

    Raises:
        UsageError: another package or one that is not installed, a name that is not a classifier in it,
            keywords or values that it does not accept.
    """

    name: str
    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_scaled: bool = False
    is_binary: bool = False
    harmless: tuple[str, ...] = ()
    derived_from: str = ""

    def __post_init__(self) -> None:
        """Build one estimator, so errors appear before any client trains."""
        from sklearn.base import is_classifier

        made = self.estimator(seed=0)
        if not is_classifier(made):
            raise self._refused("is no classifier")
        own = made.steps[-1][1] if self.is_scaled else made
        # scikit-learn validates values only in `fit`: every client of every round would report an error.
        if hasattr(own, "_parameter_constraints") and hasattr(own, "_validate_params"):
            try:
                own._validate_params()
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
        if self.is_scaled:
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import StandardScaler

            made = make_pipeline(StandardScaler(), made)
        random = [
            name
            for name, value in made.get_params().items()
            if name.rpartition("__")[2] == "random_state" and value is None
        ]
        return made.set_params(**dict.fromkeys(random, seed))

    @property
    def is_forest(self) -> bool:
        """True if more threads (`n_jobs`) fit the same model in less time."""
        return self.path in _FORESTS and "n_jobs" not in self.settings and not self.is_scaled

    @property
    def has_probabilities(self) -> bool:
        """True if estimators of this kind predict probabilities."""
        return hasattr(self.estimator(seed=0), "predict_proba")

    def weights_keyword(self, estimator: Any) -> str | None:
        """The keyword of `fit` for weights of examples; None if it takes none."""
        from sklearn.utils.validation import has_fit_parameter

        last, prefix = estimator, ""
        if self.is_scaled:
            step, last = estimator.steps[-1]
            prefix = f"{step}__"
        return f"{prefix}sample_weight" if has_fit_parameter(last, "sample_weight") else None

    def _class(self) -> type:
        module, _, name = self.path.rpartition(".")
        package = self.derived_from or module.partition(".")[0]
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
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise self._refused("there is no such class") from error
        if not isinstance(found, type):
            raise self._refused("is no class")
        return found

    def _refused(self, wrong: str = "", allowed: str = "") -> UsageError:
        return UsageError(wrong, key="estimator", value=self.path, allowed=allowed)


def one_line(error: object) -> str:
    """Text of an error or a warning in one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
