"""Data sets bundled with scikit-learn, without a download."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from jaxfed.data.dataset import Dataset


def _digits() -> Dataset:
    rows = _digit_rows()
    x = (rows[:, :-1] / 16).reshape(-1, 8, 8, 1).astype(np.float32)
    y = rows[:, -1].astype(np.int32)
    return Dataset("digits", x, y, x[:0], y[:0], 10, tuple(map(str, range(10))))


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
    x, y = bunch.data.astype(np.float32), bunch.target.astype(np.int32)
    return Dataset("breast_cancer", x, y, x[:0], y[:0], 2, tuple(map(str, bunch.target_names)))


EMBEDDED: dict[str, Callable[[], Dataset]] = {"digits": _digits, "breast_cancer": _breast_cancer}
"""digits: 1,797 images float32 `[8, 8, 1]` in 17 levels from 0 to 1, 10 classes. breast_cancer: 569 x 30,
float32, raw units, 2 classes (malignant, benign). Neither has a test split."""
