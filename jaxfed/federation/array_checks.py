"""Check of arrays that a method receives in addition to a federation, before the first round."""

from __future__ import annotations

from typing import Any

from jaxfed.data.given_examples import labels_of
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation


def check_arrays(federation: Federation, x: Any, asked: str, y: Any = None) -> None:
    """Check that examples have the clients' shape and scale, and labels the clients' classes.

    Args:
        federation: the clients.
        x: examples [n, ...], which a method uses as they are.
        asked: the method's argument, for errors.
        y: labels [n], -1 where there is none.

    Raises:
        UsageError: no array, or what `jaxfed.data.given_examples` refuses.
    """
    like_these = federation.examples_like_these(x, asked)
    if like_these.dtype != getattr(x, "dtype", None):
        raise UsageError(f"{asked}: examples are not an array of {like_these.dtype}; convert them")
    if y is not None:
        labels_of(y, asked, len(x), federation.num_classes)
