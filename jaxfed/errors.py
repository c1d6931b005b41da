"""User errors, the error of a protocol's party, and suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

_NO_VALUE: Any = object()
_LONGEST = 400  # characters of a value in an error


class UsageError(ValueError):
    """Unusable input from the caller: a wrong value, a missing file, an unknown name.

        UsageError("no client has a label")
        UsageError(key="mu", owner="fedprox", value=-1, allowed="use numbers from 0 on")

    Its text is one line, `KEY=VALUE: WRONG; ALLOWED`, without the parts that are not given. The command-line
    entries print that line and exit with status 2. `allowed` says what to write instead ("use 'a'"). `owner`
    is the factory or dataclass that has the key, until a section of a config replaces it.
    """

    def __init__(
        self,
        wrong: str = "",
        *,
        key: str = "",
        value: Any = _NO_VALUE,
        allowed: str = "",
        owner: str = "",
    ) -> None:
        super().__init__(wrong)
        self.wrong, self.key, self.allowed, self.owner = wrong, key, allowed, owner
        if value is not _NO_VALUE:
            self.value = value

    def __str__(self) -> str:
        setting = ".".join(filter(None, (self.owner, self.key)))
        if hasattr(self, "value"):
            value = " ".join(repr(self.value).split())
            setting += f"={value if len(value) <= _LONGEST else value[:_LONGEST] + '...'}"
        reason = "; ".join(filter(None, (self.wrong, self.allowed)))
        return ": ".join(filter(None, (setting, reason)))

    def renamed(self, key: str) -> UsageError:
        """Return this error with another key, which needs no owner."""
        self.key, self.owner = key, ""
        return self


@contextmanager
def section(name: str, keys: Collection[str] | Mapping[str, str]) -> Iterator[None]:
    """Put the section `name` in front of the key of errors of the enclosed code, if it is one of `keys`.

    A mapping gives the section's names for the code's, which may begin with an owner.
    """
    try:
        yield
    except UsageError as error:
        for known in (f"{error.owner}.{error.key}", error.key):
            if known in keys:
                error.renamed(f"{name}.{keys[known] if isinstance(keys, Mapping) else error.key}")
                break
        raise


class Unresumable(UsageError):
    """A saved run that cannot be resumed."""

    def __init__(self, wrong: str) -> None:
        super().__init__(f"{wrong}; give another workdir, or delete this one")


class BeyondMemory(UsageError):
    """A request that exceeds the memory; nothing has been computed."""


class ProtocolError(ValueError):
    """A message that no party which follows the protocol sends at this point; one line.

    A party that refuses a message has not revealed anything because of it. A message that is not authentic
    changes nothing: the expected message can still be received. One that is authentic but invalid ends the
    run of its sender.
    """


def suggestion(name: str, known: Iterable[str]) -> str:
    """`, did you mean ...?` for the nearest known name, else the list of known names if it is short."""
    names = sorted(known)
    return did_you_mean(nearest(name, names)) or (
        f"; known are {', '.join(names)}" if 0 < len(names) <= 24 else ""
    )


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The most similar known name, in a list; empty if none is similar."""
    return get_close_matches(name, sorted(known), n=1, cutoff=0.65)


def did_you_mean(names: Sequence[str]) -> str:
    """`, did you mean ...?` for some names; empty for none."""
    return f", did you mean {' or '.join(map(repr, names[:3]))}?" if names else ""


class DroppedOut(Exception):
    """The client of this address has left: messages that it should have sent or received are lost."""

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} dropped out")
        self.client = client
