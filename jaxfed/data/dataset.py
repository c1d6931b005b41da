"""The common result of all readers: one data set as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxfed.data.given_examples import UNLABELED as UNLABELED
from jaxfed.data.given_examples import Range, as_array, examples_of, labels_of, occurs, read_labels
from jaxfed.errors import UsageError


class Gaps(NamedTuple):
    """Columns with missing values, and the values that replace them.

    Fields:
        columns: numbers of the columns in which a value was missing, ascending.
        medians: float32, of the training rows' values in these columns.
    """

    columns: tuple[int, ...]
    medians: tuple[float, ...]

    def filled(self, x: np.ndarray, names: Sequence[str] = ()) -> np.ndarray:
        """Replace NaN in x [n, d] by the medians, and append an indicator (0 or 1) for each column.

        A value that is missing in another column is refused; `names` are those of the columns.
        """
        is_gap = np.isnan(x)
        other = np.setdiff1d(np.flatnonzero(is_gap.any(axis=0)), self.columns)
        if len(other):
            column = int(other[0])
            row = int(np.flatnonzero(is_gap[:, column])[0])
            name = names[column] if len(names) else column
            raise UsageError(
                f"row {row}: column {name!r} has no value, and had one in every row of the training data; "
                "give a value"
            )
        width = x.shape[1]
        filled = np.empty((len(x), width + len(self.columns)), x.dtype)
        filled[:, :width] = x
        for column, median in zip(self.columns, self.medians, strict=True):
            filled[is_gap[:, column], column] = median
        filled[:, width:] = is_gap[:, list(self.columns)]
        return filled


class Encoder(Protocol):
    """Converts rows as their publisher or owner has them to examples, as the reader did."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers of an example; () if they have none."""

    @property
    def accepts(self) -> str:
        """Kinds of rows that it converts, in words."""

    def __call__(self, rows: Any) -> np.ndarray:
        """Return one row or several as examples [n, ...], of the type and shape of `Dataset.x`."""

    def blank(self) -> np.ndarray:
        """Return no rows, [0, ...], of the type and shape of `Dataset.x`."""


@dataclasses.dataclass(frozen=True)
class ArrayEncoder:
    """Encoder of arrays [n, ...], or of one example without its first axis.

    The single channel of grey images may be left out.

    Attributes:
        shape: of an example.
        is_bytes: True for uint8, as images are stored; else numbers, which become float32.
        is_wide: numbers become float64.
        scale: `Range` of the numbers that were trained on; None if it is not known.
    """

    shape: tuple[int, ...]
    is_bytes: bool
    is_wide: bool = False
    scale: tuple[float, float, bool] | None = None

    names = ()

    @classmethod
    def of(cls, x: np.ndarray) -> ArrayEncoder:
        """Return the encoder of rows like these examples."""
        is_bytes = x.dtype == np.uint8
        scale = None if is_bytes else Range.of(x)
        return cls(x.shape[1:], is_bytes, x.dtype == np.float64, scale)

    @property
    def accepts(self) -> str:
        """The arrays in words."""
        kind = "uint8" if self.is_bytes else "numbers"
        return f"an array of {kind} [{', '.join(['n', *map(str, self.shape)])}]"

    def __call__(self, rows: Any) -> np.ndarray:
        """Return the examples [n, *shape]."""
        x = rows if np.ma.isMaskedArray(rows) else as_array(rows, "rows")
        flat = self.shape[:-1] if self.shape[-1] == 1 else self.shape
        if x.shape not in (self.shape, flat) and x.shape[1:] not in (self.shape, flat):
            raise UsageError(f"rows have shape {list(x.shape)}; give {self.accepts}")
        x = x.reshape(-1, *self.shape)
        x = examples_of(x, f"rows ({self.accepts})", like=self.blank())
        if self.scale is not None:
            Range(*self.scale).check(x, "rows")
        return x.astype(self.blank().dtype, copy=False)

    def blank(self) -> np.ndarray:
        """Return no examples, [0, *shape]."""
        numbers = np.float64 if self.is_wide else np.float32
        return np.zeros((0, *self.shape), np.uint8 if self.is_bytes else numbers)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A classification data set, in the order of its source.

    Attributes:
        name: as requested.
        x: `[n, ...]`. Images: uint8 `[n, height, width, channels]`, 0..255 (the embedded digits:
            float32, 0 to 1). Everything else: float32, or float64 if float32 makes different values equal.
        y: int32 `[n]`, classes 0..num_classes-1, and -1 for examples that have no label
            in the source.
        x_test, y_test: the source's own test split, of the same kind; 0 rows without one. All of
            it is labeled.
        num_classes: C; a class may have no example.
        class_names: C names.
        client_id: int32 `[n]`, the natural client of each example, numbered from 0 in the order of
            the sorted names over both splits; None where the source has no such column.
        client_id_test: the same of the test split.
        client_names: names of the natural clients by their number; empty where the source has none.
        subclass: int32 `[n]`, a finer class of each example (the 100 classes of CIFAR-100, where `y` are its
            20); None where the source has none.
        subclass_test: the same of the test split.
        origin: note on the examples' origin for reports; mostly empty.
        has_gaps: True if x of a table has NaN for missing cells; `gaps` fills them.
        encoder: converts other rows like x; None: they are arrays (`jaxfed.data.encoding`).

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
    encoder: Encoder | None = None
    client_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that lengths, shapes and classes agree, as every reader must ensure."""
        if len(self.class_names) != self.num_classes:
            wrong = f"{len(self.class_names)} class names for {self.num_classes} classes"
            raise self._refused(f"{wrong}; use one a class")
        twice = [name for name in self.class_names if self.class_names.count(name) > 1]
        if twice:
            raise self._refused(f"two classes are named {twice[0]!r}; use distinct names")
        first: np.ndarray | None = None
        for split, suffix in (("train", ""), ("test", "_test")):
            where = f"data set {self.name!r}, {split}"
            examples, labels = getattr(self, f"x{suffix}"), getattr(self, f"y{suffix}")
            features = self.names["features"]
            x = examples_of(examples, where, first, names=features, allows_nan=self.has_gaps)
            y = labels_of(labels, where, len(x), self.num_classes)
            if suffix and (y < 0).any():
                raise UsageError(f"{where}: an example has no label; each needs one")
            for name in ("client_id", "subclass"):
                column = getattr(self, f"{name}{suffix}", None)
                if column is not None and column.shape != y.shape:
                    wrong = f"{len(y)} examples but {name} of shape {column.shape}"
                    raise UsageError(f"{where}: {wrong}; one an example is needed")
            for name, column in ((f"x{suffix}", x), (f"y{suffix}", y)):
                object.__setattr__(self, name, column)
            first = x if first is None else first
        if not len(self.y):
            raise UsageError(f"data set {self.name!r} has no training examples")

    def _refused(self, wrong: str) -> UsageError:
        return UsageError(f"data set {self.name!r}: {wrong}")

    @property
    def is_labeled(self) -> np.ndarray:
        """bool [n], True for training examples with a label in the source."""
        return self.y != UNLABELED

    @property
    def names(self) -> dict[str, list[str]]:
        """Names of the classes, and of the numbers of an example if they have names."""
        features = self.encoder.names if self.encoder else ()
        return {"classes": list(self.class_names), "features": list(features)}

    def gaps(self, is_training: np.ndarray) -> Gaps | None:
        """Return what fills the gaps of all splits; None if no value is missing.

        A gap becomes its column's median over the rows of x `is_training` [n]. An indicator for each column
        with gaps follows all other features: 1 where the value was missing and 0 elsewhere.
        """
        if not self.has_gaps:
            return None
        has_gap = np.isnan(self.x).any(axis=0) | np.isnan(self.x_test).any(axis=0)
        columns, medians = np.flatnonzero(has_gap).tolist(), []
        for column in columns:
            known = self.x[is_training, column]
            known = known[~np.isnan(known)]
            if not len(known):
                raise self._refused(
                    f"feature {column + 1} has no value in the rows to train on; leave its column out "
                    "(dataset.drop)"
                )
            medians.append(float(np.median(known)))
        return Gaps(tuple(columns), tuple(medians))

    def __repr__(self) -> str:
        """One line: name, sizes, shapes; never the arrays."""
        ids = [column for column in (self.client_id, self.client_id_test) if column is not None]
        form = f"{self.x.dtype}{list(self.x.shape[1:])}, {self.num_classes} classes"
        if num_unlabeled := np.count_nonzero(~self.is_labeled):
            form += f", {num_unlabeled} without a label"
        form += f", {len(np.unique(np.concatenate(ids)))} clients" if ids else ""
        return f"Dataset({self.name!r}: {len(self.x)} + {len(self.x_test)} x {form})"


def has_gaps(*splits: np.ndarray) -> bool:
    """True if a value is NaN."""
    return any(occurs(np.isnan, x) for x in splits)


def dataset_of(
    name: object,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    where: str = "",
    class_names: Sequence[str] | np.ndarray | None = None,
    clients: Sequence[np.ndarray | None] = (None, None),
    **more: Any,
) -> Dataset:
    """Make a data set of the labels and clients as its source has them.

    Args:
        name: of the data set.
        splits: x [n, ...] and labels [n] of the training and the test split; labels are numbers, texts, bytes
            or objects, masked or not.
        where: source of the labels, as messages name it; by default the name.
        class_names: C names, if the source has them; integers are then numbers of these classes.
        clients: [n] of the two splits, names or numbers of natural clients, which are numbered from 0 in the
            order of their sorted names over both; None where the source has no such column. A test split
            without one is for all clients together.
        **more: further fields of `Dataset`.
    """
    (x, labels), (x_test, test_labels) = splits
    parts = [np.asanyarray(each) for each in (labels, test_labels)]
    joint = np.ma.concatenate(parts) if any(map(np.ma.isMA, parts)) else np.concatenate(parts)
    values, is_labeled = read_labels(joint, where or str(name), are_known=class_names is not None)
    if missing := np.count_nonzero(~is_labeled[len(labels) :]):
        raise UsageError(
            f"{name}: {missing} test examples have no label, and nothing can be measured on them; "
            "move them to the training examples, where they become clients' unlabeled examples"
        )
    numbers, names = _class_numbers(values, is_labeled, class_names)
    y, y_test = np.split(numbers, [len(labels)])
    train, test = clients
    if train is not None:
        columns = [np.asarray(train), np.asarray(train)[:0] if test is None else np.asarray(test)]
        kinds, ids = np.unique(np.concatenate(columns), return_inverse=True)
        of_train, of_test = np.split(ids.astype(np.int32), [len(columns[0])])
        texts = (kind.decode() if isinstance(kind, bytes) else str(kind) for kind in kinds.tolist())
        more |= {"client_id": of_train, "client_names": tuple(texts)}
        more |= {"client_id_test": None if test is None and len(y_test) else of_test}
    return Dataset(str(name), x, y, x_test, y_test, len(names), names, **more)


def _class_numbers(
    values: np.ndarray, is_labeled: np.ndarray, names: Sequence[str] | np.ndarray | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The numbers of the classes int32 [n], -1 where there is no label, and the classes' names.

    Without names the classes are the distinct labels, sorted: 0..C-1 keep their numbers, other values (3..8,
    say) are numbered anew.
    """
    labels = values[is_labeled]
    if names is not None and labels.dtype.kind in "iu":
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
            raise UsageError(
                f"labels {labels.min()}..{labels.max()} are not all numbers of the {len(names)} classes that "
                f"have names, 0..{len(names) - 1}"
            )
        class_names = list(map(str, names))
    else:
        kinds, labels = np.unique(labels, return_inverse=True)
        class_names = list(map(str, kinds.tolist()))
    numbers = np.full(len(values), UNLABELED, np.int32)
    numbers[is_labeled] = labels
    return numbers, tuple(class_names)
