"""What a user does about results that cannot be gone on with: every entry has its own words."""

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
    """Around work on a workdir: a refusal of what is there ends with the remedy."""
    try:
        yield
    except Unresumable as error:
        raise UsageError(f"{error}; {remedy}") from error
