"""Contests whose samples are short."""

import pytest

from benchmarks.timing import contest


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(contest, "SHORTEST_SAMPLE", 0.001)
    monkeypatch.setattr(contest, "REST", 0)
