"""Data sets bundled with scikit-learn, without a download."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from jaxfed.data.dataset import Dataset


def _digits() -> Dataset:
    rows = _digit_rows()
    return Dataset(
        name="digits",
        x=(rows[:, :-1] / 16).reshape(-1, 8, 8, 1).astype(np.float32),
        y=rows[:, -1].astype(np.int32),
        x_test=np.zeros((0, 8, 8, 1), np.float32),
        y_test=np.zeros(0, np.int32),
        num_classes=10,
        class_names=tuple(map(str, range(10))),
    )


def _digit_rows() -> np.ndarray:
    """float64 [1797, 64 + 1], pixels and class.

    If scikit-learn's file is at its usual place, it is read without importing scikit-learn, which takes a
    second.
    """
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _breast_cancer() -> Dataset:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return Dataset(
        name="breast_cancer",
        x=bunch.data.astype(np.float32),
        y=bunch.target.astype(np.int32),
        x_test=np.zeros((0, bunch.data.shape[1]), np.float32),
        y_test=np.zeros(0, np.int32),
        num_classes=2,
        class_names=tuple(str(name) for name in bunch.target_names),
    )


EMBEDDED: dict[str, Callable[[], Dataset]] = {"digits": _digits, "breast_cancer": _breast_cancer}
"""digits: 1,797 images float32 `[8, 8, 1]` in 17 levels from 0 to 1, 10 classes. breast_cancer: 569 x 30,
float32, raw units, 2 classes (malignant, benign). Neither has a test split."""
