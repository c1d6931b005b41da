"""Cases that run with every commit, and cases that run on demand (`-m slow`)."""

import pytest


def on_demand(cases, *, at_once):
    """Return the cases as parameters: those `at_once` run always, the others are slow."""
    cases = list(cases)
    unknown = set(at_once) - set(cases)
    assert not unknown, unknown
    return [
        case if case in at_once else pytest.param(case, marks=pytest.mark.slow) for case in cases
    ]
