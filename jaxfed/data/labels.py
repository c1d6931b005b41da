"""Rule for labels and missing labels, shared by tables, arrays and `Federation.from_clients`.

An example is unlabeled where its label is masked, NaN, None, -1 (also "-1" and "-1.0"), empty, or one of the
words NA, N/A, <NA>, NaN, None, null and ?, in any case. Exception: if -1 and one other number are the only
labels, and no class has a name, they are two classes, as in many binary sets.

All other labels are integers or names. Whole numbers written as floats (3.0) are integers; other spellings of
integers (01, -0, +1) are names, so no two labels are merged. Numbers with fractions, or integers that
mostly occur once, are a quantity, not classes.
"""

from __future__ import annotations

import re
import unicodedata

import numpy as np
from absl import logging

from jaxfed.errors import UsageError

UNLABELED = -1
NOTHING = frozenset({"", "na", "n/a", "<na>", "nan", "none", "null", "?"})

_INTEGER = re.compile(r"(0|-?[1-9][0-9]{0,17})(\.0*)?")  # of 64 bits, written in one way
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FEW = 20  # this many distinct numbers are never a quantity


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
    given = _plain(np.ma.getdata(y), where)
    kinds, places = np.unique(given, return_inverse=True)
    names = [plain_text(str(kind)) for kind in kinds.tolist()]
    is_label = np.array([not is_nothing(name) for name in names], bool)
    labels = [name for name, is_one in zip(names, is_label, strict=True) if is_one]
    are_integers = all(map(_INTEGER.fullmatch, labels))
    if not are_integers and labels and all(map(_NUMBER.fullmatch, labels)):
        odd = next(name for name in labels if not _INTEGER.fullmatch(name))
        if float(odd) != round(float(odd)):
            raise _of_a_quantity(where, f"{odd} has a fraction")
    if are_integers:
        pairs = zip(names, is_label, strict=True)
        numbers = [int(name.partition(".")[0]) if is_one else 0 for name, is_one in pairs]
        values = np.array(numbers, np.int64)
        found = np.unique(values[is_label])
        if UNLABELED in found and (are_known or len(found) != 2):
            is_label &= values != UNLABELED
    else:
        values = np.array(names, np.str_)
        is_label &= ~np.isin(values, ("-1", "-1.0"))
    words = [repr(kind) for kind in kinds[~is_label].tolist() if str(kind).strip()]
    if words and given.dtype.kind == "U":
        logging.warning("%s: rows whose label is %s are unlabeled", where, " or ".join(words[:8]))
    values, is_labeled = values[places], is_label[places] & ~np.ma.getmaskarray(np.ma.asarray(y))
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


def _of_a_quantity(where: str, found: str) -> UsageError:
    return UsageError(
        f"{where}: labels are a quantity, {found}; jaxfed learns classes, which are integers or names: "
        "cut the quantity into classes first"
    )
