"""Arrow columns by their types: numbers, texts, vectors, arrays, or encoded images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxfed.data.labels import plain_text
from jaxfed.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

Where = Callable[[int], str]  # a row of a batch -> its location in words


class Kind(Enum):
    """Ways to read a column."""

    NUMBERS = "one feature"
    TEXTS = "the texts that a CSV file has for these values"
    VECTOR = "lists of equal length: one feature an entry"
    ARRAY = "nested lists: the whole example"
    IMAGE = "encoded images: the whole example"
    NONE = "cannot be a feature"


def kind_of(dtype: pa.DataType, feature: Mapping[str, Any]) -> Kind:
    """Kind of a column.

    Args:
        dtype: its type.
        feature: its description by Hugging Face's `datasets`; may be empty.
    """
    import pyarrow.types as types

    dtype = _plain(dtype)
    described = feature.get("_type")
    if is_number(dtype):
        return Kind.TEXTS if described == "ClassLabel" else Kind.NUMBERS
    if types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        inner = kind_of(dtype.value_type, {})
        if inner == Kind.NUMBERS or types.is_boolean(dtype.value_type):
            return Kind.VECTOR
        return Kind.ARRAY if inner in (Kind.VECTOR, Kind.ARRAY) else Kind.NONE
    if types.is_struct(dtype) and dtype.get_field_index("bytes") >= 0:
        return Kind.IMAGE if described in (None, "Image") else Kind.NONE
    if types.is_binary(dtype) or types.is_large_binary(dtype):
        return Kind.IMAGE
    return Kind.NONE if types.is_nested(dtype) else Kind.TEXTS


def is_number(dtype: pa.DataType) -> bool:
    """True for integers and floating numbers."""
    import pyarrow.types as types

    return types.is_integer(dtype) or types.is_floating(dtype)


def is_bytes(dtype: pa.DataType) -> bool:
    """True for nested lists of uint8."""
    import pyarrow.types as types

    dtype = _plain(dtype)
    while types.is_nested(dtype):
        dtype = dtype.value_type
    return types.is_uint8(dtype)


def _plain(dtype: pa.DataType) -> pa.DataType:
    """The type of the values without dictionary or extension."""
    import pyarrow.types as types

    dtype = getattr(dtype, "storage_type", dtype)
    return dtype.value_type if types.is_dictionary(dtype) else dtype


def values_of(column: pa.Array) -> pa.Array:
    """The column without dictionary or extension."""
    import pyarrow as pa

    column = getattr(column, "storage", column)
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def texts(column: pa.Array, names: Sequence[str] = ()) -> list[str]:
    """The cells of a column as texts, "" where missing.

    Args:
        column: numbers, texts, dates and the like.
        names: of classes, for a column of their numbers; others stay numbers.
    """
    known = {
        value: plain_text(str(names[value] if names and 0 <= value < len(names) else value))
        for value in column.unique().drop_null().to_pylist()
    }
    return [known.get(value, "") for value in column.to_pylist()]  # NaN is never found


def numbers(column: pa.Array) -> np.ndarray:
    """float64 [n], NaN where missing."""
    if str(column.type) == "bool":
        column = column.cast("uint8")
    return column.to_numpy(zero_copy_only=False).astype(np.float64)


def shape_of(column: pa.Array) -> tuple[int, ...] | None:
    """Shape of the first row of lists in which nothing is missing; None where there is none."""
    for value in column:
        shape: list[int] = []
        while value.is_valid and hasattr(value, "values"):
            shape.append(len(value.values))
            if not shape[-1]:
                break
            value = value.values[0]
        if shape and (value.is_valid or not hasattr(value, "values")):
            return tuple(shape)
    return None


def arrays(column: pa.Array, shape: tuple[int, ...], where: Where) -> np.ndarray:
    """float64 [n, *shape] of lists, NaN where an entry or the whole list is missing.

    Raises:
        UsageError: lists of another shape.
    """
    import pyarrow.compute as pc

    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    found = np.full((len(column), *shape), np.nan)
    rows, per_row = np.flatnonzero(is_there), 1
    inner = column.drop_null()
    for size in shape:
        lengths = pc.list_value_length(inner).to_numpy(zero_copy_only=False)
        odd = np.flatnonzero(lengths != size)  # NaN of a missing list, too
        if len(odd):
            raise UsageError(
                f"{where(int(rows[odd[0] // per_row]))}: a list of another shape than the first, "
                f"{list(shape)}; all need one shape"
            )
        inner, per_row = inner.flatten(), per_row * size
    if kind_of(inner.type, {}) != Kind.NUMBERS and str(inner.type) != "bool":
        raise UsageError(
            f"{where(0)}: no list of this column has entries; leave it out (dataset.drop)"
        )
    found[is_there] = numbers(inner).reshape(len(rows), *shape)
    return found
