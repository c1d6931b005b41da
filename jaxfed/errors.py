"""User errors, and suggestions for misspelled names."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UsageError(ValueError):
    """Unusable input from the caller: a wrong value, a missing file, an unknown name.

    Its message is one line that names the input and what is allowed, or how to get a missing file.
    The command-line entries print that line and exit with status 2, without a traceback.
    """


class Unresumable(UsageError):
    """A saved run that cannot be resumed; `jaxfed.experiment.store.remedy` adds a hint."""


class BeyondMemory(UsageError):
    """A request that exceeds the memory limit; nothing has been computed."""


def suggestion(given: str, known: Iterable[str]) -> str:
    """`, did you mean ...?` for the nearest known name, else the list of known names if it is short."""
    names = sorted(known)
    return did_you_mean(nearest(given, names)) or (
        f"; known are {', '.join(names)}" if 0 < len(names) <= 24 else ""
    )


def nearest(given: str, known: Iterable[str]) -> list[str]:
    """The most similar known name, in a list; empty if none is similar."""
    return get_close_matches(given, sorted(known), n=1, cutoff=0.7)


def did_you_mean(names: Sequence[str]) -> str:
    """`, did you mean ...?` for some names; empty for none."""
    return f", did you mean {' or '.join(map(repr, names[:3]))}?" if names else ""
