"""The sets that scikit-learn carries within itself: nothing to download."""

from collections.abc import Callable

import numpy as np

from jaxfed.data.dataset import Dataset


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Dataset(
        name="digits",
        x=bunch.images[..., None].astype(np.float32),
        y=bunch.target.astype(np.int32),
        x_test=np.zeros((0, 8, 8, 1), np.float32),
        y_test=np.zeros(0, np.int32),
        num_classes=10,
        class_names=tuple(str(name) for name in bunch.target_names),
    )


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
"""digits: 1,797 images float32 `[8, 8, 1]`, 0..16, 10 classes. breast_cancer: 569 x 30, float32, raw
units, 2 classes (malignant, benign). Neither has a test split."""
