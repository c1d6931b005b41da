"""Seconds of clients' steps: read with suspicion, and added up to the seconds of a stage."""

from jaxfed.flower.messages import timings


def test_there_and_back():
    seconds = {"method": 0.5, "step": 1.25, "compile": 0.125}
    assert timings.from_record(timings.to_record(seconds)) == seconds


def test_the_rest_is_transport():
    clients = {0: {"method": 0.5, "step": 1.0, "compile": 0.75}, 1: {"step": 2.0}}
    found = timings.summary(clients, {0: 4.5, 1: 5.0})
    assert (found["step_max"], found["step_mean"]) == (2.0, 1.5)
    assert (found["method_max"], found["method_mean"]) == (0.5, 0.25)
    assert (found["transport_max"], found["transport_mean"]) == (3.0, 3.0)
    assert timings.summary({}, {}) == {}
    assert timings.summary({0: {"step": 9.0}}, {0: 1.0})["transport_max"] == 0  # it says too much
