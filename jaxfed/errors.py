"""The one error that is the user's to mend, and what may have been meant."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UsageError(ValueError):
    """The caller gave something that cannot be used: a wrong value, a missing file, an unknown name.

    Its message is one line that names what was given and what is allowed, or how to get what is
    missing. The command-line entries print that line and exit with status 2, without a traceback.
    """


class Unresumable(UsageError):
    """What is there of a run cannot be gone on with; `jaxfed.experiment.remedy` adds what to do."""


class BeyondMemory(UsageError):
    """What was asked for takes more memory than it may; nothing of it has been computed."""


def suggestion(given: str, known: Iterable[str]) -> str:
    """`, did you mean ...?` for the nearest known name, else the list of them while it is short."""
    names = sorted(known)
    return did_you_mean(nearest(given, names)) or (
        f"; known are {', '.join(names)}" if 0 < len(names) <= 24 else ""
    )


def nearest(given: str, known: Iterable[str]) -> list[str]:
    """The known name that is most like the given one, where one is alike."""
    return get_close_matches(given, sorted(known), n=1, cutoff=0.7)


def did_you_mean(names: Sequence[str]) -> str:
    """`, did you mean ...?` for some names; nothing for none."""
    return f", did you mean {' or '.join(map(repr, names[:3]))}?" if names else ""
