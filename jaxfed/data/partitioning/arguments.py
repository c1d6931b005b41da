"""Checks of `partition`'s arguments before any example is distributed."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from jaxfed.data.dataset import UNLABELED
from jaxfed.data.partitioning.schemes import OWNING, Quantity, Scheme
from jaxfed.errors import UsageError

Skew = Literal["both", "labeled", "unlabeled"]


def checked_classes(name: str, y: npt.ArrayLike, smallest: int = 0) -> np.ndarray:
    """int64 [n], classes from `smallest` on."""
    y = np.asarray(y)
    if y.ndim != 1 or not (np.issubdtype(y.dtype, np.integer) or y.size == 0):
        raise UsageError(f"{name} must be integers [n], got {y.dtype} of shape {list(y.shape)}")
    if y.size and y.min() < smallest:
        unknown = ", and -1 is an unknown one" if smallest == UNLABELED else ""
        raise UsageError(f"{name} has class {y.min()}: classes count from 0{unknown}")
    return y.astype(np.int64)


def check_arguments(
    num_clients: int | None,
    scheme: Scheme,
    quantity: Quantity | None,
    quantity_parameter: float,
    min_size: int,
    num_labeled: int | None,
    num_labeled_clients: int | None,
    skew: Skew,
) -> None:
    """Check the arguments by themselves, without the data."""
    for name, value, kind in (
        ("scheme", scheme, Scheme),
        ("quantity", quantity, Quantity),
        ("skew", skew, Skew),
    ):
        if value not in get_args(kind) and value is not None:
            raise UsageError(
                f"{name}={value!r}: allowed are {', '.join(map(repr, get_args(kind)))}"
            )
    if skew is None:
        raise UsageError(f"skew=None: allowed are {', '.join(map(repr, get_args(Skew)))}")
    for name, number, least in (
        ("num_clients", num_clients, 1),
        ("num_labeled", num_labeled, 0),
        ("num_labeled_clients", num_labeled_clients, 0),
        ("min_size", min_size, 0),
    ):
        if number is not None and not (isinstance(number, int | np.integer) and number >= least):
            raise UsageError(f"{name}={number!r}: allowed are integers from {least} on")
    if scheme in OWNING and (quantity is not None or skew != "both" or min_size):
        raise UsageError(
            f"scheme={scheme!r} says who holds what: quantity, skew and min_size do not go with it"
        )
    if scheme != "natural" and num_clients is None:
        raise UsageError(f"scheme={scheme!r} needs num_clients, an integer from 1 on")
    if quantity is not None and not 0 < quantity_parameter < np.inf:
        raise UsageError(f"quantity_parameter={quantity_parameter}: allowed are numbers above 0")
