"""Checks of all examples and labels that callers pass for training, evaluation and prediction.

    x = examples_of(data, "predict", like=federation.x)         # one array
    x, y = pair_of(data, "ServerTraining.examples", is_labeled=True)

    examples = GivenExamples("from_clients", num_classes)        # client by client
    for pair in clients:
        examples.add(pair, "clients[{}]")
    x, y, sizes = examples.joined()

Examples are finite numbers [n, ...] of one shape. Their kinds do not mix:

* Bytes (uint8) are images, 0 to 255. Other integers from 0 to 255 become bytes where bytes are expected.
* All other types are numbers, which stay as they are. Integers of 64 bits become float64, since a device
  would wrap them. Images of other integers than bytes are refused where no others show their scale.
* Numbers that all lie in [0, 1], some of them fractions, are on the scale 0 to 1. They do not mix with whole
  numbers beyond 1, nor images of this scale with others outside [-1, 2] (`Range`).
* An array without examples has no kind of its own: it takes that of the others.

Labels of examples whose classes are known are whole numbers from -1 (unlabeled) to C - 1. Labels of
tables and of arrays in files follow the same rule (`read_labels`).

An example is unlabeled where its label is masked, NaN, None, -1 (also "-1" and "-1.0"), empty, or a word for
a missing value: ?, or one of pandas' (NA, N/A, NaN, None, null and others), in any case. Exception: if -1 and
one other number are the only labels, and no class has a name, they are two classes, as in many binary sets.

All other labels are integers or names. Whole numbers written as floats (3.0) are integers; other spellings of
integers (01, -0, +1) are names, so no two labels are merged. Numbers with fractions, or integers that
mostly occur once, are a quantity, not classes.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from absl import logging

from jaxfed.data.mapped_rows import parts
from jaxfed.errors import UsageError
from jaxfed.settings import Ge, check_value

Each = TypeVar("Each")

UNLABELED = -1
NOTHING = frozenset(  # pandas' words, and ?
    {"", "?", "na", "n/a", "<na>", "#na", "#n/a", "#n/a n/a", "nan", "-nan", "none", "null"}
    | {"1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"}
)

_INTEGER = re.compile(r"(0|-?[1-9][0-9]{0,17})(\.0*)?")  # of 64 bits, written in one way
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FEW = 20  # this many distinct numbers are never a quantity
_MOST_CLASSES = 2**31 - 1  # of int32
_LOOKED_AT = 2**24  # values that show a scale


def as_array(data: npt.ArrayLike, name: str) -> np.ndarray:
    """Return an array, or nested lists as one; errors call it `name`."""
    try:
        return data if isinstance(data, np.memmap) else np.asarray(data)
    except ValueError as error:
        wrong = f"{name} are lists of unequal lengths; use an array, or lists of one length"
        raise UsageError(wrong) from error


def integer_images(x: np.ndarray, *, axes: int = 4) -> str:
    """Return the error text for integers of `axes` axes or more that are not bytes; "" for other examples."""
    if x.ndim < axes or x.dtype.kind not in "iu" or x.dtype == np.uint8:
        return ""
    form = f"{x.dtype}{list(x.shape)}"
    return f"{form} are not images; use uint8, 0 to 255, or floats from 0 to 1"


def examples_of(
    data: Any,
    where: str,
    like: np.ndarray | None = None,
    *,
    names: Sequence[str] = (),
    allows_nan: bool = False,
) -> np.ndarray:
    """Return examples as an array [n, ...], by the rules above.

    Args:
        data: an array, a data frame, or nested lists; `where` names it in errors.
        like: examples whose shape and kind these must have.
        names: of the features, for errors.
        allows_nan: True if NaN is a missing value.

    Raises:
        UsageError: no numbers, another shape or kind, values that are not finite in float32.
    """
    wrong = ""
    if np.ma.is_masked(data):
        wrong = "are a masked array; fill in missing values, x.filled(VALUE)"
    x = as_array(data, f"{where}: examples")
    shape = x.shape[1:] if like is None else like.shape[1:]
    if not np.can_cast(x.dtype, np.float32, "same_kind"):
        wrong = (
            f"of type {x.dtype}; numbers are needed (numbers as objects: x.astype(float), a sparse "
            "matrix: x.toarray())"
        )
    elif x.ndim < 2 or x.shape[1:] != shape or 0 in shape:
        wanted = "..." if like is None else ", ".join(map(str, shape))
        wrong = f"are an array {list(x.shape)}; use [n, {wanted}], a row for each example" + (
            "" if like is None else ", of the same shape as all others"
        )
    elif like is None:
        wrong = wrong or integer_images(x)
    elif not x.size:
        x = x.astype(like.dtype)
    elif x.dtype != np.uint8 == like.dtype and x.dtype.kind in "iu":
        low, high = x.min(), x.max()
        if not 0 <= low <= high <= 255:
            wrong = f"have values {low} to {high}; bytes are needed, 0 to 255"
        x = x.astype(np.uint8)
    elif (x.dtype == np.uint8) != (like.dtype == np.uint8):
        kinds = f"some examples are {like.dtype} and some {x.dtype}"
        raise UsageError(f"{where}: {kinds}; use one type for all, bytes 0..255 or numbers")
    if wrong:
        raise UsageError(f"{where}: examples {wrong}")
    _check_finite(x, where, names, allows_nan=allows_nan)
    return x.astype(np.float64) if x.dtype.kind in "iu" and x.dtype.itemsize > 4 else x


def _check_finite(
    x: np.ndarray, where: str, names: Sequence[str] = (), *, allows_nan: bool = False
) -> None:
    """Refuse values that are nan or infinite in float32; the error names the first one's row and feature."""

    def is_bad(x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # to inf
            x = x.astype(np.float32, copy=False)
        return np.isinf(x) if allows_nan else ~np.isfinite(x)

    if x.dtype.kind not in "biu" and occurs(is_bad, x):
        bad = is_bad(x).reshape(len(x), -1)
        is_row = bad.any(axis=1)
        row = int(is_row.argmax())
        column = int(bad[row].argmax())
        raise UsageError(
            f"{where}: {np.count_nonzero(is_row)} of {len(x)} examples have values that are nan or infinite "
            f"in float32 (the first: row {row}, feature {names[column] if len(names) else column!r}); every "
            "value must be a finite number"
        )


def occurs(is_one: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> bool:
    """True if a value of x is one, looked for in some rows at a time."""
    return any(is_one(part).any() for part in parts(x))


class Range(NamedTuple):
    """Values of numbers to train on: the smallest, the largest, and whether all are whole numbers."""

    low: float
    high: float
    are_whole: bool

    @classmethod
    def of(cls, x: np.ndarray) -> Range:
        """Return the range of the first values; ranges of bytes and of no values fit every other."""
        if not x.size or x.dtype == np.uint8:
            return cls(0.0, 0.0, are_whole=True)
        x = x[: max(1, _LOOKED_AT // x[0].size)]
        blocks = [(part.min(), part.max(), (part == np.rint(part)).all()) for part in parts(x)]
        lows, highs, whole = zip(*blocks, strict=True)
        return cls(float(min(lows)), float(max(highs)), are_whole=all(map(bool, whole)))

    def check(self, x: np.ndarray, where: str) -> None:
        """Refuse numbers x of another scale than this range's, by the rule of the module's docstring."""
        if wrong := self.other_scale(x):
            raise UsageError(f"{where}: {wrong}")

    def other_scale(self, x: np.ndarray) -> str:
        """Return the error text for numbers x of another scale; "" for the same."""
        here, is_image = Range.of(x), x.ndim > 2
        is_image_beyond = is_image and not -1 <= here.low <= here.high <= 2
        is_beyond_here = self._is_unit_scale and (here._is_beyond_unit or is_image_beyond)
        are_images_beyond = is_image and self.low >= 0 and self.high > 2
        if not is_beyond_here and not (
            here._is_unit_scale and (self._is_beyond_unit or are_images_beyond)
        ):
            return ""
        return (
            f"examples have values {here.low:g} to {here.high:g}, and those to train on {self.low:g} to "
            f"{self.high:g}; use one scale for all"
        )

    @property
    def _is_unit_scale(self) -> bool:
        return 0 <= self.low <= self.high <= 1 and not self.are_whole

    @property
    def _is_beyond_unit(self) -> bool:
        return self.are_whole and self.high > 1


def read_labels(
    y: np.ndarray, where: str, *, are_known: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Find labels and missing labels by the rule above.

    Args:
        y: labels [n] of all splits: numbers, texts, bytes or objects, masked or not.
        where: the source, for messages.
        are_known: the classes are known, so -1 is not one of two classes and numbers are not a quantity.

    Returns:
        values int64 [n] or str [n], arbitrary where there is no label; and bool [n], True where there is one.
    """
    plain = _plain(np.ma.getdata(y), where)
    kinds, inverse = np.unique(plain, return_inverse=True)
    names = [plain_text(str(kind)) for kind in kinds.tolist()]
    is_label = np.array([not is_nothing(name) for name in names], bool)
    labels = [name for name, is_one in zip(names, is_label, strict=True) if is_one]
    are_integers = all(map(_INTEGER.fullmatch, labels))
    if not are_integers and labels and all(map(NUMBER.fullmatch, labels)):
        odd = next(name for name in labels if not _INTEGER.fullmatch(name))
        if float(odd) != round(float(odd)):
            raise _of_a_quantity(where, f"{odd} has a fraction")
    if are_integers:
        pairs = zip(names, is_label, strict=True)
        numbers = [int(name.partition(".")[0]) if is_one else 0 for name, is_one in pairs]
        values = np.array(numbers, np.int64)
        classes = np.unique(values[is_label])
        if UNLABELED in classes and (are_known or len(classes) != 2):
            is_label &= values != UNLABELED
    else:
        values = np.array(names, np.str_)
        is_label &= ~np.isin(values, ("-1", "-1.0"))
    words = [repr(kind) for kind in kinds[~is_label].tolist() if str(kind).strip()]
    if words and plain.dtype.kind == "U":
        logging.warning("%s: rows whose label is %s are unlabeled", where, " or ".join(words[:8]))
    values, is_labeled = values[inverse], is_label[inverse] & ~np.ma.getmaskarray(np.ma.asarray(y))
    known = values[is_labeled]
    number = len(np.unique(known))
    if not are_known and are_integers and number > max(_FEW, len(known) / 2):
        raise _of_a_quantity(where, f"{len(known)} labels are {number} different numbers")
    return values, is_labeled


def plain_text(text: str) -> str:
    """A name without surrounding spaces, in Unicode's composed form, so equal names compare equal."""
    return unicodedata.normalize("NFC", text).strip()


def is_nothing(text: str) -> bool:
    """True if a cell stands for a missing value."""
    return text.strip().casefold() in NOTHING


def _plain(values: np.ndarray, where: str) -> np.ndarray:
    """Numbers as they are, everything else as text."""
    kind = values.dtype.kind
    if kind == "b":
        return values.astype(np.int64)
    if kind == "f" and (beyond := values[np.abs(values) >= 2**53]).size:
        raise _of_a_quantity(where, f"{beyond[0]} is no integer")
    if kind in "iufU":
        return values
    if kind == "S":
        return np.char.decode(values, "utf-8")
    if kind == "O" and all(
        value is None or isinstance(value, str | int | float) for value in values
    ):
        return np.array(["" if value is None else str(value) for value in values], np.str_)
    raise UsageError(f"{where}: labels of type {values.dtype}; integers or names are needed")


def _of_a_quantity(where: str, why: str) -> UsageError:
    return UsageError(
        f"{where}: labels are a quantity, {why}; jaxfed learns classes, which are integers or names: "
        "cut the quantity into classes first"
    )


def labels_of(data: Any, where: str, number: int, num_classes: int | None = None) -> np.ndarray:
    """Return labels as int32 [number], -1 where there is none.

    `data` is an array, masked or not, a column of a data frame, or a list; `where` names it in errors.
    Names, fractions, another length and labels outside the classes, where C is known, are refused.
    """
    y = np.ma.asarray(data) if np.ma.isMaskedArray(data) else as_array(data, f"{where}: labels")
    if y.shape != (number,):
        raise UsageError(
            f"{where}: labels of shape {y.shape}, {y.dtype}, for {number} examples; one integer "
            "each is needed, -1 for unlabeled"
        )
    if y.dtype.kind not in "iu" or np.ma.isMaskedArray(y):
        values, is_labeled = read_labels(y, where, are_known=True)
        if values.dtype.kind not in "biu":
            name = str(values[is_labeled][0])
            wrong = f"label {name!r} is a name; number the classes from 0, -1 is unlabeled"
            raise UsageError(f"{where}: {wrong}")
        y = np.where(is_labeled, values, UNLABELED)
    is_wrong = _are_wrong(y, num_classes)
    if is_wrong.any():
        raise _no_class(where, y[is_wrong][0], num_classes)
    return y.astype(np.int32, copy=False)


def _are_wrong(y: np.ndarray, num_classes: int | None) -> np.ndarray:
    """bool [n], True for labels outside the classes."""
    return (y < UNLABELED) | (y >= (num_classes or _MOST_CLASSES))


def _no_class(where: str, label: Any, num_classes: int | None) -> UsageError:
    last = "num_classes-1" if num_classes is None else num_classes - 1
    return UsageError(f"{where}: label {label} is not a class; use 0 to {last}, -1 for unlabeled")


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2


def pair_of(
    pair: Any,
    where: str,
    *,
    num_classes: int | None = None,
    like: np.ndarray | None = None,
    is_labeled: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return a pair of examples and labels as arrays, by `examples_of` and `labels_of`.

    With `is_labeled` there must be examples, each with a label.

    Raises:
        UsageError: no pair, or what these two refuse.
    """
    if not _is_pair(pair):
        raise UsageError(f"{where} is {type(pair).__name__}; use a pair (examples, labels)")
    x = examples_of(pair[0], where, like)
    y = labels_of(pair[1], where, len(x), num_classes)
    if is_labeled and not (len(y) and y.min() >= 0):
        raise UsageError(
            f"{where}: {len(y)} examples, {np.count_nonzero(y < 0)} without a label; give at least one "
            "example, each with a label from 0 on"
        )
    return x, y


def each_of(items: Iterable[Each], name: str) -> Iterator[Each]:
    """Return an iterator over what is given client by client; errors call it `name`."""
    if not isinstance(items, Iterable):
        kind = type(items).__name__
        wrong = f"{name} is of type {kind}; use a list of pairs (examples, labels), one a client"
        raise UsageError(wrong)
    return iter(items)


def with_unknown_classes(x: object, name: str) -> object:
    """Return None or a pair of examples and labels as it is; examples alone get -1."""
    if x is None or isinstance(x, tuple):
        return x
    examples = as_array(x, name)  # type: ignore[arg-type]
    return examples, np.full(examples.shape[:1], UNLABELED)


def num_classes_of(asked: str, highest: int, num_classes: int | None) -> int:
    """Return C, at least two, by default one more than the highest label."""
    classes = highest + 1 if num_classes is None else num_classes
    if classes < 2:
        raise UsageError(
            f"{asked}: the highest label is {highest}; use labels 0..C-1 of two classes or more, -1 for "
            "unlabeled, or give num_classes"
        )
    return classes


def check_labels_of(asked: str, server: np.ndarray, public: np.ndarray, is_labeled: bool) -> None:
    """Check that the server's examples have labels, and public ones if their labels are public."""
    if np.any(server < 0):
        raise UsageError(f"{asked}: every example of the server needs its label, 0 or more")
    if is_labeled and not (len(public) and np.all(public >= 0)):
        wrong = "public_labeled=True: every public example needs its label, 0 or more"
        raise UsageError(f"{asked}: {wrong}, and one at least there must be")


class GivenExamples:
    """Examples that were added since the last `joined`.

    For an array like earlier ones `add` checks only type and shape; `joined` checks all values together.
    """

    def __init__(self, asked: str, num_classes: int | None = None) -> None:
        """`asked` is the name of the caller's function in errors, `num_classes` its argument."""
        if num_classes is not None:
            check_value("num_classes", num_classes, Annotated[int, Ge(2)], owner=asked)
        self._asked, self._num_classes = asked, num_classes
        self._x: list[np.ndarray] = []
        self._y: list[np.ndarray] = []
        self._names: list[str] = []
        self._added: Counter[str] = Counter()
        self._first: np.ndarray | None = None  # of the first example's type and shape
        self._scale: Range | None = None
        self.num_bytes = 0

    def add(self, part: Any, name: str) -> None:
        """Add a pair of examples and labels; errors call it `name`, {} is the client's number."""
        if _is_pair(part) and self._is_like_earlier(*part):
            x, y = part
        else:
            where = f"{self._asked}: {name.format(self._added[name])}"
            x, y = pair_of(part, where, num_classes=self._num_classes, like=self._first)
            self._first = x[:0] if self._first is None and len(x) else self._first
        self._x.append(x)
        self._y.append(y)
        self._names.append(name)
        self._added[name] += 1
        self.num_bytes += x.nbytes

    def _is_like_earlier(self, x: Any, y: Any) -> bool:
        """True for arrays of the first one's type and shape, and labels that join without a loss."""
        return (
            type(x) is type(y) is np.ndarray
            and self._first is not None
            and x.dtype == self._first.dtype
            and y.dtype in (np.int32, np.int64, np.uint8)
            and x.shape == (*y.shape, *self._first.shape[1:])
            and y.ndim == 1
        )

    def joined(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all examples added since the last call, and clear them.

        These are x [n, ...], labels int32 [n], -1 if unlabeled, and the number of examples of each `add`.
        """
        empty = self._x[:1] if self._first is None else [self._first]
        if not empty:
            raise UsageError(f"{self._asked}: no examples; one client is needed at least")
        x = np.concatenate([part for part in self._x if len(part)] or empty)
        y = np.concatenate(self._y or [np.zeros(0, np.int32)])
        sizes = np.fromiter(map(len, self._x), np.int64, len(self._x))
        is_wrong = _are_wrong(y, self._num_classes)
        if is_wrong.any():
            row = int(is_wrong.argmax())
            part = int(np.searchsorted(np.cumsum(sizes), row, side="right"))
            raise _no_class(self._where(part), y[row], self._num_classes)
        try:
            _check_finite(x, self._asked)
        except UsageError:
            for part, each in enumerate(self._x):
                _check_finite(each, self._where(part))
        are_clients = np.array(["{" in name for name in self._names], bool)  # they were added first
        if self._scale is None:
            self._scale = Range.of(x[: sizes[are_clients].sum()])
        are_compared = ~are_clients | (x.ndim > 2 and x.dtype != np.uint8)
        for part in np.flatnonzero(are_compared).tolist():
            if wrong := self._scale.other_scale(self._x[part]):
                raise UsageError(f"{self._where(part)}: {wrong}")
        self._x, self._y, self._names, self.num_bytes = [], [], [], 0
        return x, y.astype(np.int32, copy=False), sizes

    def _where(self, part: int) -> str:
        name = self._names[part]
        return f"{self._asked}: {name.format(self._added[name] - self._names[part:].count(name))}"
