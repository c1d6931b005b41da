"""Hints for results that cannot be resumed; each entry point names its own flags or arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jaxfed.errors import Unresumable, UsageError

OF_A_COMMAND = "give another --workdir, or --overwrite to begin again"
OF_A_CALL = "give another workdir, or overwrite=True to begin again"
OF_A_SWEEP = "give the sweep another --workdir, or delete this point's"
IN_A_SWEEP = "JAXFED_IN_A_SWEEP"  # set for the processes of a sweep, which has no --overwrite


@contextmanager
def remedied(remedy: str) -> Iterator[None]:
    """Append the hint to the `Unresumable` errors of the enclosed code, as a `UsageError`."""
    try:
        yield
    except Unresumable as error:
        raise UsageError(f"{error}; {remedy}") from error
