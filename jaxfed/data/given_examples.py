"""Examples and labels that a caller gives client by client: checks them and joins them to arrays.

    examples = GivenExamples("from_clients")
    for x, y in clients:
        examples.add(x, y, "a client")
    x, y, sizes = examples.joined()

For an array like earlier ones `add` checks only type and shape; `joined` checks all values together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from jaxfed.data.dataset import UNLABELED, as_array
from jaxfed.data.labels import read_labels
from jaxfed.data.mapped_rows import parts
from jaxfed.errors import UsageError
from jaxfed.rules import at_least

Each = TypeVar("Each")


class Joined(NamedTuple):
    """Examples [n, ...], labels int32 [n], -1 if unlabeled, and the number of examples of each `add`, [k]."""

    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray


def each_of(given: Iterable[Each], name: str) -> Iterator[Each]:
    """Return an iterator over what is given client by client; errors call it `name`.

    Raises:
        UsageError: it is no list.
    """
    try:
        return iter(given)
    except TypeError as error:
        raise UsageError(
            f"{name} is of type {type(given).__name__}; use a list of pairs (examples, labels), one a client"
        ) from error


def with_unknown_classes(x: object, name: str) -> object:
    """Return None or a pair of examples and labels as it is; examples alone get -1; errors call them `name`.

    Raises:
        UsageError: lists of unequal lengths.
    """
    if x is None or isinstance(x, tuple):
        return x
    examples = as_array(x, name)  # type: ignore[arg-type]
    return examples, np.full(examples.shape[:1], UNLABELED)


def num_classes_of(asked: str, lowest: int, highest: int, num_classes: int | None) -> int:
    """Return C, by default one more than the highest label.

    Raises:
        UsageError: a label outside the classes, a single class, or a number of classes that is no integer.
    """
    if not (num_classes is None or at_least(2).is_met(num_classes)):
        raise UsageError(
            key="num_classes", owner=asked, value=num_classes, allowed=at_least(2).advice
        )
    classes = highest + 1 if num_classes is None else num_classes
    if highest >= classes or lowest < UNLABELED or classes < 2:
        raise UsageError(
            f"{asked}: labels {lowest}..{highest} with num_classes={classes}; "
            "use 0..num_classes-1, of two classes or more, and -1 for unlabeled"
        )
    return classes


def check_labels_of(asked: str, server: np.ndarray, public: np.ndarray, is_labeled: bool) -> None:
    """Check that the server's examples have labels, and public ones if their labels are public.

    Raises:
        UsageError: a label is missing.
    """
    if np.any(server < 0):
        raise UsageError(f"{asked}: every example of the server needs its label, 0 or more")
    if is_labeled and not (len(public) and np.all(public >= 0)):
        raise UsageError(
            f"{asked}: public_labeled=True: every public example needs its label, 0 or more, and one "
            "at least there must be"
        )


class GivenExamples:
    """Examples that were added since the last `joined`."""

    def __init__(self, asked: str) -> None:
        """`asked` is the name of the caller's function in errors."""
        self._asked = asked
        self._x: list[np.ndarray] = []
        self._y: list[np.ndarray] = []
        self._first: np.ndarray | None = None
        self._kinds: set[tuple[np.dtype, np.dtype]] = set()
        self._shape: tuple[int, ...] = ()
        self.num_bytes = 0

    def add(self, part: object, name: str) -> None:
        """Add a pair of examples [n, ...] and labels [n]; errors call it `name`.

        Raises:
            UsageError: not a pair; examples that are not finite numbers, or have another shape than earlier
                ones; labels that are not classes.
        """
        if not (isinstance(part, tuple | list) and len(part) == 2):
            raise UsageError(
                f"{self._asked}: {name} is {type(part).__name__}; use a pair (examples, labels)"
            )
        x, y = part
        if not (
            type(x) is np.ndarray
            and type(y) is np.ndarray
            and (x.dtype, y.dtype) in self._kinds
            and x.shape[1:] == self._shape
            and x.ndim > 1
            and y.shape == x.shape[:1]
        ):
            x, y = self._checked(x, y)
        self._x.append(x)
        self._y.append(y)
        self.num_bytes += x.nbytes

    def joined(self) -> Joined:
        """Return all examples added since the last call, and clear them.

        Raises:
            UsageError: nan or infinite values; nothing has ever been added.
        """
        if self._first is None:
            raise UsageError(f"{self._asked}: no examples; one client is needed at least")
        x = np.concatenate(self._x or [self._first[:0]])
        labels = self._y or [np.zeros(0, np.int32)]
        if len({each.dtype for each in labels}) > 1:
            labels = [each.astype(np.int32) for each in labels]
        y = np.concatenate(labels).astype(np.int32)
        sizes = np.fromiter(map(len, self._x), np.int64, len(self._x))
        with np.errstate(over="ignore"):  # to inf
            if x.dtype.kind == "f" and not all(
                np.isfinite(part.astype(np.float32, copy=False)).all() for part in parts(x)
            ):
                raise UsageError(
                    f"{self._asked}: examples have values that are nan or infinite in float32; every value "
                    "must be finite"
                )
        self._x, self._y, self.num_bytes = [], [], 0
        return Joined(x, y, sizes)

    def _checked(self, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return both as arrays; store their types if arrays like them need no check."""
        if np.ma.is_masked(x):
            raise UsageError(
                f"{self._asked}: examples are a masked array; fill its gaps first, x.filled(VALUE)"
            )
        x = as_array(x, f"{self._asked}: examples")
        y = np.ma.asarray(y) if np.ma.isMaskedArray(y) else as_array(y, f"{self._asked}: labels")
        if x.dtype.kind not in "biuf":
            raise UsageError(
                f"{self._asked}: examples of type {x.dtype}; numbers are needed (numbers as objects: "
                "x.astype(float), a sparse matrix: x.toarray())"
            )
        first = x if self._first is None else self._first
        if (x.dtype == np.uint8) != (first.dtype == np.uint8):
            raise UsageError(
                f"{self._asked}: some examples are {first.dtype} and some {x.dtype}; bytes 0..255 and "
                "numbers of another scale do not go together: give all parts the same type"
            )
        shape = first.shape[1:]
        if x.ndim < 2:
            raise UsageError(
                f"{self._asked}: examples are an array {list(x.shape)}; use [n, ...], a row for each example"
            )
        if x.shape[1:] != shape:
            raise UsageError(
                f"{self._asked}: examples [n, ...] of one shape are needed; here are {x.shape[1:]} "
                f"and {shape}"
            )
        if y.shape != x.shape[:1]:
            raise UsageError(
                f"{self._asked}: labels of shape {y.shape}, {y.dtype}, for {len(x)} examples; one integer "
                "each is needed, -1 for unlabeled"
            )
        (labels,) = read_labels([y], self._asked, are_known=True)
        if labels.values.dtype.kind not in "biu":
            name = str(labels.values[labels.is_labeled][0])
            raise UsageError(
                f"{self._asked}: label {name!r} is a name; number the classes from 0, -1 is unlabeled"
            )
        if self._first is None:
            self._first, self._shape = x[:0], x.shape[1:]
        if type(y) is np.ndarray and y.dtype.kind in "iu":
            self._kinds.add((x.dtype, y.dtype))
            return x, y
        return x, np.where(labels.is_labeled, labels.values, UNLABELED).astype(np.int32)
