"""Asynchronous rounds in simulated time, against a simulation of plain Python, and by hand."""

import numpy as np
import pytest
from plain_fedbuff import arrivals

import jaxfed
from jaxfed.algorithms.fedbuff import slots_of
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clock import Asynchronous, Clock, Timed, schedule_of
from jaxfed.federation.method import with_attributes
from jaxfed.federation.rounds import Sampling, sample_clients


def federation(sizes):
    made = [(np.zeros((n, 2), np.float32), [0] * n) for n in sizes]
    return jaxfed.Federation.from_clients(made, num_classes=2)


def scheduled(sizes, size, concurrency, rounds, clock=None):
    clock = clock or Clock(seconds_per_example=1.0)
    return asynchronous(clock, federation(sizes), size, concurrency, rounds)


def asynchronous(clock, clients, size, concurrency, rounds, last=0):
    """The schedule, whose arrivals the method receives."""
    received = []
    of = Asynchronous(concurrency, lambda all_: received.append(all_) or method, (None, len))
    needs = {"needs_labels_in": lambda number: number <= last}
    method = FederatedAlgorithm(None, with_attributes(len, asynchronous=of, **needs), None)
    _, schedule = schedule_of(clock, method, clients, Sampling(size), 5, rounds)
    assert received == [schedule.rounds]
    return schedule


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(2, 3, 7, 13), (3, 5, 11, 17, 29), (4, 9, 10, 21, 33, 55)])
def test_against_clients_in_plain_python(sizes, size):
    schedule = scheduled(sizes, size, len(sizes), 30)
    found = [(one.clients, one.seconds, one.version) for one in schedule.rounds]
    assert found == arrivals(sizes, size, 30)
    steps = [
        number - version for number, one in enumerate(schedule.rounds) for version in one.version
    ]
    assert (max(steps) > 0) == (size < len(sizes))
    number = (
        int(np.argmax([one.version != (i,) * size for i, one in enumerate(schedule.rounds)])) + 1
    )
    one = schedule.rounds[number - 1]
    assert schedule.metrics(number)["staleness"] == number - 1 - np.mean(one.version)


def test_equal_speeds_and_as_many_as_arrive_are_synchronous_rounds():
    schedule = scheduled([4] * 9, 3, 3, 5)
    drawn = [tuple(sample_clients(Sampling(3), federation([4] * 9), 5, n)) for n in range(1, 6)]
    assert [one.clients for one in schedule.rounds] == drawn
    assert [one.seconds for one in schedule.rounds] == [4.0, 8.0, 12.0, 16.0, 20.0]
    assert [set(one.version) for one in schedule.rounds] == [{0}, {1}, {2}, {3}, {4}]
    assert max(slots_of(schedule.rounds)) == 0  # one model at a time


def test_arrivals_of_one_instant_come_before_anybody_begins():
    """Four of equal speed in steps of two: the second step of an instant has the first one's model."""
    schedule = scheduled([4] * 4, 2, 4, 4)
    found = [(one.clients, one.seconds, one.version) for one in schedule.rounds]
    assert found == [
        ((0, 1), 4.0, (0, 0)),
        ((2, 3), 4.0, (0, 0)),
        ((0, 1), 8.0, (2, 2)),
        ((2, 3), 8.0, (2, 2)),
    ]


def partly_labeled(*labels):
    """Clients with these numbers of labels, each beside an example without."""
    made = [(np.zeros((n + 1, 2), np.float32), [0] * n + [-1]) for n in labels]
    return jaxfed.Federation.from_clients(made, num_classes=2)


def scheduled_on_labels(labels, size, concurrency, rounds, last):
    """Rounds up to `last` are on given labels alone."""
    clock, clients = Clock(seconds_per_example=1.0), partly_labeled(*labels)
    return asynchronous(clock, clients, size, concurrency, rounds, last)


def test_clients_without_labels_do_not_arrive():
    """All three with labels train at a time, for 2, 3 and 5 seconds, as if they were the only clients."""
    schedule = scheduled_on_labels((0, 2, 0, 3, 0, 0, 5), 2, 6, 10, last=10)
    found = [(one.clients, one.seconds, one.version) for one in schedule.rounds]
    names = (1, 3, 6)
    assert found == [
        (tuple(names[i] for i in clients), time, version)
        for clients, time, version in arrivals((2, 3, 5), 2, 10)
    ]


def test_clients_without_labels_begin_once_they_have_work():
    schedule = scheduled_on_labels((0, 8, 9, 0), 1, 4, 4, last=1)
    assert [(one.clients, one.seconds, one.version) for one in schedule.rounds] == [
        ((1,), 8.0, (0,)),
        ((0,), 9.0, (1,)),  # with the model after the first step, as client 3
        ((2,), 9.0, (0,)),
        ((3,), 9.0, (1,)),
    ]


def test_models_are_stored_while_somebody_needs_them():
    """Rounds by hand: each reads the slot that its clients' models were written to, and not since."""
    versions = [(0, 0), (1, 0), (1, 2), (0, 3), (4, 4), (1, 5)]
    timed = [Timed((0, 1), 1.0, version) for version in versions]
    slots = slots_of(timed)
    assert slots == [0, 1, 2, 2, 0, 0]
    held = {}
    for number, version in enumerate(versions):
        held[slots[number]] = number  # the model before this round, if somebody begins with it
        assert [held[slots[one]] for one in version] == list(version)
