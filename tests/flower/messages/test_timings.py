"""Seconds of clients' processes: read with suspicion, and added up to the seconds of a stage."""

import time

import pytest

from jaxfed.flower.client import client_run
from jaxfed.flower.messages import grid_messages, timings


def test_there_and_back():
    seconds = {"start": 0.25, "imports": 0.0, "method": 0.5, "step": 1.25, "compile": 0.125}
    assert timings.from_record(timings.to_record(seconds)) == seconds


def test_the_rest_is_transport():
    clients = {
        0: {"start": 1.0, "imports": 0.5, "method": 0.5, "step": 1.0, "compile": 0.75},
        1: {"step": 2.0},
    }
    found = timings.summary(clients, {0: 4.0, 1: 5.0})
    assert (found["step_max"], found["step_mean"]) == (2.0, 1.5)
    assert (found["start_max"], found["start_mean"]) == (1.0, 0.5)
    assert (found["transport_max"], found["transport_mean"]) == (3.0, 2.0)
    assert timings.summary({}, {}) == {}
    assert timings.summary({0: {"step": 9.0}}, {0: 1.0})["transport_max"] == 0  # it says too much


@pytest.mark.skipif(timings.since_start() is None, reason="the system does not say")
def test_since_the_start_of_the_process():
    first = timings.since_start()
    time.sleep(0.1)
    assert 0 < first < timings.since_start() < first + 60


def test_a_clock_that_begins_late_spoils_no_reply(monkeypatch, tmp_path):
    """The process seems to begin after its imports; seconds below 0 would be refused."""
    monkeypatch.setattr(timings, "since_start", lambda: 0.0)
    monkeypatch.setattr(grid_messages, "answered", lambda message, do: do.keywords["seconds"])
    seconds = client_run.answer(None, tmp_path, called=time.perf_counter() - 1)
    assert timings.from_record(timings.to_record(seconds))["start"] == 0
