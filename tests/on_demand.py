"""Cases that run with every commit, and cases that run on demand (`-m slow`)."""

import pytest


def on_demand(cases, *, at_once):
    """Return the cases as parameters: those `at_once` run always, the others are slow."""
    cases = list(cases)
    unknown = set(at_once) - set(cases)
    assert not unknown, unknown
    return [case if case in at_once else _slow(case) for case in cases]


def _slow(case):
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
