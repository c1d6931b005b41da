"""The one error that is the user's to mend, and what may have been meant."""

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(ValueError):
    """The caller gave something that cannot be used: a wrong value, a missing file, an unknown name.

    Its message is one line that names what was given and what is allowed, or how to get what is
    missing. The command-line entries print that line and exit with status 2, without a traceback.
    """


def suggestion(given: str, known: Iterable[str]) -> str:
    """`, did you mean ...?` for the nearest known name, else the list of them while it is short."""
    names = sorted(known)
    leaf = {name: name.rpartition(".")[2] for name in names}
    nearest = [name for name in names if leaf[name] == given.rpartition(".")[2]]
    nearest = nearest or get_close_matches(given, names, n=1, cutoff=0.7)
    if not nearest:
        close = get_close_matches(given.rpartition(".")[2], leaf.values(), n=1, cutoff=0.7)
        nearest = [name for name in names if leaf[name] in close]
    if nearest:
        return f", did you mean {' or '.join(map(repr, nearest[:3]))}?"
    return f"; known are {', '.join(names)}" if 0 < len(names) <= 24 else ""
