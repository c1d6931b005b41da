"""The common result of all readers: one data set as arrays."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxfed.errors import UsageError

UNLABELED = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A classification data set, in the order of its source.

    Attributes:
        name: as requested.
        x: `[n, ...]`. Images: uint8 `[n, height, width, channels]`, 0..255 (the embedded digits:
            float32, 0..16). Everything else: float32.
        y: int32 `[n]`, classes 0..num_classes-1, and -1 for examples that have no label
            in the source. At least one has a label.
        x_test, y_test: the source's own test split, of the same kind; 0 rows without one. All of
            it is labeled.
        num_classes: C; a class may have no example.
        class_names: C names.
        client_id: int32 `[n]`, the natural client of each example, numbered from 0 in the order of
            the sorted names over both splits; None where the source has no such column.
        client_id_test: the same of the test split.
        subclass: int32 `[n]`, a finer class of each example, all of whose examples are of one class (the 100
            classes of CIFAR-100, where `y` are its 20); None where the source has none.
        subclass_test: the same of the test split.
        origin: note on the examples' origin for reports; mostly empty.
        has_gaps: True if x of a table has NaN for missing cells; `completed` fills them.

    Arrays that come from the cache are memory-mapped and read-only.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    class_names: tuple[str, ...]
    client_id: np.ndarray | None = None
    client_id_test: np.ndarray | None = None
    subclass: np.ndarray | None = None
    subclass_test: np.ndarray | None = None
    origin: str = ""
    has_gaps: bool = False

    def __post_init__(self) -> None:
        """Check that lengths, shapes and classes agree, as every reader must ensure."""
        splits = (
            ("train", self.x, self.y, self.client_id, self.subclass, UNLABELED),
            ("test", self.x_test, self.y_test, self.client_id_test, self.subclass_test, 0),
        )
        for split, x, y, client_id, subclass, smallest in splits:
            if y.ndim != 1 or len(x) != len(y):
                raise UsageError(
                    f"data set {self.name!r}, {split}: {len(x)} examples but labels of shape "
                    f"{y.shape}; one label an example is needed"
                )
            if client_id is not None and client_id.shape != y.shape:
                raise UsageError(
                    f"data set {self.name!r}, {split}: {len(y)} examples but client ids of shape "
                    f"{client_id.shape}; one id an example is needed"
                )
            if subclass is not None and subclass.shape != y.shape:
                raise UsageError(
                    f"data set {self.name!r}, {split}: {len(y)} examples but subclasses of shape "
                    f"{subclass.shape}; one an example is needed"
                )
            is_bad = np.isinf if self.has_gaps else lambda x: ~np.isfinite(x)
            is_float = np.issubdtype(x.dtype, np.floating)
            if is_float and any(is_bad(part).any() for part in parts(x)):
                bad = np.count_nonzero(is_bad(x).reshape(len(x), -1).any(axis=1))
                raise UsageError(
                    f"data set {self.name!r}, {split}: {bad} of {len(x)} examples have values that are "
                    "nan or infinite; every value must be a finite number"
                )
            if len(y) and not (y.min() >= smallest and y.max() < self.num_classes):
                raise UsageError(
                    f"data set {self.name!r}, {split}: labels {y.min()}..{y.max()} are not all in "
                    f"{smallest}..{self.num_classes - 1}"
                )
            if 0 in x.shape[1:]:
                raise UsageError(
                    f"data set {self.name!r}, {split}: examples of shape {list(x.shape[1:])} have no "
                    "features; one at least is needed"
                )
        twice = [name for name in self.class_names if self.class_names.count(name) > 1]
        if twice:
            raise UsageError(
                f"data set {self.name!r}: two classes are named {twice[0]!r}; use distinct names"
            )
        if not len(self.y):
            raise UsageError(f"data set {self.name!r} has no training examples")
        if not self.is_labeled.any():
            raise UsageError(
                f"data set {self.name!r}: none of its {len(self.y)} training examples has a label"
            )
        if len(self.x_test) and self.x.dtype != self.x_test.dtype:
            raise UsageError(
                f"data set {self.name!r}: training examples are {self.x.dtype}, test examples "
                f"{self.x_test.dtype}; bytes 0..255 and numbers of another scale cannot be mixed: use the "
                "same type for both"
            )
        if self.x.shape[1:] != self.x_test.shape[1:]:
            raise UsageError(
                f"data set {self.name!r}: training examples have shape {self.x.shape[1:]}, test "
                f"examples {self.x_test.shape[1:]}"
            )

    @property
    def is_labeled(self) -> np.ndarray:
        """bool [n], True for training examples with a label in the source."""
        return self.y != UNLABELED

    def completed(self, is_training: np.ndarray) -> "Dataset":
        """Fill gaps with the column's median over training rows, and add an indicator per column with gaps.

        Gaps of the test split are filled with the same medians. The indicators follow all other features;
        they are 1 where the value was missing and 0 elsewhere.

        Args:
            is_training: bool [n], the rows of x for the medians: no test rows.

        Raises:
            UsageError: a column without any value in the training rows.
        """
        if not self.has_gaps:
            return self
        is_gap, is_gap_test = np.isnan(self.x), np.isnan(self.x_test)
        columns = np.flatnonzero(is_gap.any(axis=0) | is_gap_test.any(axis=0))
        x, x_test = self.x.copy(), self.x_test.copy()
        for column in columns:
            known = self.x[is_training & ~is_gap[:, column], column]
            if not len(known):
                raise UsageError(
                    f"data set {self.name!r}: feature {column + 1} has no value in the rows to train on; "
                    "leave its column out (dataset.drop)"
                )
            x[is_gap[:, column], column] = np.median(known)
            x_test[is_gap_test[:, column], column] = np.median(known)
        x = np.concatenate([x, is_gap[:, columns].astype(np.float32)], axis=1)
        x_test = np.concatenate([x_test, is_gap_test[:, columns].astype(np.float32)], axis=1)
        return dataclasses.replace(self, x=x, x_test=x_test, has_gaps=False)

    def __repr__(self) -> str:
        """One line: name, sizes, shapes; never the arrays."""
        ids = [column for column in (self.client_id, self.client_id_test) if column is not None]
        clients = f", {len(np.unique(np.concatenate(ids)))} clients" if ids else ""
        num_unlabeled = np.count_nonzero(~self.is_labeled)
        unlabeled = f", {num_unlabeled} without a label" if num_unlabeled else ""
        return (
            f"Dataset({self.name!r}: {len(self.x)} + {len(self.x_test)} x "
            f"{self.x.dtype}{list(self.x.shape[1:])}, {self.num_classes} classes{unlabeled}{clients})"
        )


def parts(x: np.ndarray) -> Iterator[np.ndarray]:
    """Some rows of x at a time, so that what is computed of all its values takes little memory."""
    rows = max(1, 2**20 // max(1, math.prod(x.shape[1:])))
    return (x[start : start + rows] for start in range(0, len(x), rows))


def has_gaps(*splits: np.ndarray) -> bool:
    """True if a value is NaN."""
    return any(np.isnan(part).any() for x in splits for part in parts(x))


def standardization(x: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return the transform that scales every feature to mean 0 and variance 1 over these examples [n, ...].

    x'_ij = (x_ij - mean_j) / deviation_j, in float32; a constant feature becomes 0. Other
    examples are transformed by the same mean and deviation. Without it, the feature of the largest unit
    (an area, not a radius) would dominate every cosine and distance.
    """
    mean = x.mean(axis=0, dtype=np.float64)
    deviation = x.std(axis=0, dtype=np.float64)
    # A constant column may have a deviation of rounding errors only.
    constant = deviation <= 1e-12 * np.abs(mean)
    scale = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, deviation))

    def transform(others: np.ndarray) -> np.ndarray:
        return ((others - mean) * scale).astype(np.float32)

    return transform


def client_numbers(
    train: np.ndarray | None, test: np.ndarray | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Number natural clients from 0 in the order of their sorted names over both splits.

    Args:
        train: any [n] of names or numbers, or None where the source has no such column.
        test: the same of the test split; None stands for no test examples.

    Returns:
        int32 [n] and int32 [n_test], or (None, None).
    """
    if train is None:
        return None, None
    columns = [np.asarray(train), np.asarray(train)[:0] if test is None else np.asarray(test)]
    _, numbers = np.unique(np.concatenate(columns), return_inverse=True)
    first, second = np.split(numbers.astype(np.int32), [len(columns[0])])
    return first, second


def class_numbers(
    *splits: np.ndarray,
    names: Sequence[str] | np.ndarray | None = None,
    is_labeled: np.ndarray | None = None,
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Number the classes; labels are names or any integers.

    Args:
        *splits: labels [n] of each split.
        names: C class names, if the source has them; integer labels are then numbers of these classes.
        is_labeled: bool [n] of the first split; entries of unlabeled examples are ignored. None: all.

    Returns:
        One int32 [n] a split, -1 where there is no label, and the names. Without `names`, the classes are
        the distinct labels of all splits, sorted: 0..C-1 keep their numbers, other values (3..8, say) are
        numbered anew.
    """
    has_label = np.ones(sum(map(len, splits)), bool)
    if is_labeled is not None:
        has_label[: len(is_labeled)] = is_labeled
    joint = np.concatenate(splits)[has_label]
    if names is not None and np.issubdtype(joint.dtype, np.integer):
        if len(joint) and not (joint.min() >= 0 and joint.max() < len(names)):
            raise UsageError(
                f"labels {joint.min()}..{joint.max()} are not all numbers of the {len(names)} classes that "
                f"have names, 0..{len(names) - 1}"
            )
        numbers, found = joint, [str(name) for name in names]
    else:
        values, numbers = np.unique(joint, return_inverse=True)
        found = [str(value) for value in values]
    ends = np.cumsum([len(split) for split in splits])[:-1]
    classes = np.full(len(has_label), UNLABELED, np.int32)
    classes[has_label] = numbers
    return np.split(classes, ends), tuple(found)


class Partition(NamedTuple):
    """The examples of each client, as indices; every example of the data appears exactly once.

    Attributes:
        labeled: M int64 arrays, the examples whose label the client knows.
        unlabeled: M int64 arrays, the examples it holds without a label.
        new: M int64 arrays, held-out examples it wants labeled (X_new of XCLP's Section 4.1). Those
            of `new_y` count on from the end of `y`: they index the two arrays concatenated.
    """

    labeled: tuple[np.ndarray, ...]
    unlabeled: tuple[np.ndarray, ...]
    new: tuple[np.ndarray, ...]
