"""A room's bad calls as one test: the line that each is refused with."""

import re
from collections.abc import Callable, Mapping

import pytest

from jaxfed.errors import UsageError


def table(cases: Mapping[str, Callable[[], object]], error: type[Exception] = UsageError):
    """A test of calls, each in an empty folder, by how the error of each begins; `...` is any text."""

    @pytest.mark.parametrize("line", cases)
    def test(line, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(error, match="^" + begins(line)) as caught:
            cases[line]()
        assert "\n" not in str(caught.value)

    return test


def begins(line: str) -> str:
    """A pattern of a line's beginning."""
    return ".*".join(map(re.escape, line.split("...")))
