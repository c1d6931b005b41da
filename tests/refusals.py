"""A room's bad calls as one test: the line that each is refused with."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from invoking import invoke

from jaxfed.errors import UsageError


def table(cases: Mapping[str, Callable[[], object]], error: type[Exception] = UsageError):
    """A test of calls, each in an empty folder, by how the error of each begins.

    `...` is any text; what follows two spaces only tells cases of one line apart.
    """

    @pytest.mark.parametrize("line", cases)
    def test(line, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(error, match=begins(line.partition("  ")[0])) as caught:
            cases[line]()
        assert "\n" not in str(caught.value)

    return test


def begins(line: str) -> str:
    """A pattern of a line's beginning."""
    return "^" + ".*".join(map(re.escape, line.split("...")))


def launched(main: Callable[[list[str]], object], *arguments: str) -> Callable[[], None]:
    """A launcher's call that raises its line, with status 2; `W` is a workdir, which it does not make."""

    def call():
        workdir = Path("w").resolve()
        given = [text.replace("=W", f"={workdir}") for text in arguments]
        status, complaint = invoke(given, main)
        assert (status, complaint[-1], workdir.exists()) == (2, "\n", False)
        raise UsageError(complaint.removeprefix("jaxfed: ")[:-1])

    return call
