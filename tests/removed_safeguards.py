"""Whether a check of a protocol notices that one of its safeguards is gone."""

import pytest


def is_needed(remove, check, monkeypatch):
    """The check passes with the safeguard, and fails once `remove(monkeypatch)` has taken it away."""
    check()
    remove(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()
