"""Synchronous rounds in simulated time, by hand: client j takes j + 1 seconds."""

import numpy as np
import pytest

import jaxfed
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clock import Clock, schedule_of
from jaxfed.federation.method import with_attributes
from jaxfed.federation.rounds import Sampling, sample_clients

SECOND = Clock(seconds_per_example=1.0)


def federation(number=6, labels=0):
    """Client j has j + 1 examples, the first with a label from client `labels` on."""
    made = [
        (np.zeros((j + 1, 2), np.float32), [0 if j >= labels else -1, *[-1] * j])
        for j in range(number)
    ]
    return jaxfed.Federation.from_clients(made, num_classes=2)


def scheduled(clock, size=0, rounds=3, number=6, sampling="uniform", **options):
    clients = options.pop("federation", None) or federation(number)
    last = options.pop("last_with_labels", 0)
    round = with_attributes(len, needs_labels_in=lambda number: number <= last)
    method = FederatedAlgorithm(None, round, None)
    found, schedule = schedule_of(
        clock, method, clients, Sampling(size, sampling), 5, rounds, **options
    )
    assert found is method
    return schedule


def with_labels(*numbers):
    """Clients with these numbers of labels, each beside an example without."""
    made = [(np.zeros((n + 1, 2), np.float32), [0] * n + [-1]) for n in numbers]
    return jaxfed.Federation.from_clients(made, num_classes=2)


def scheduled_on_labels(clock, clients, size=0, rounds=3, **options):
    options = {"last_with_labels": rounds, "federation": clients, **options}
    return scheduled(clock, size, rounds, **options)


def rounds_of(schedule):
    return [(one.clients, one.seconds) for one in schedule.rounds]


def test_without_seconds_there_is_no_schedule():
    assert scheduled(Clock()) is None


def test_the_slowest_ends_a_round_of_the_usual_clients():
    schedule = scheduled(SECOND, 3)
    drawn = [sample_clients(Sampling(3), federation(), 5, number) for number in (1, 2, 3)]
    assert [list(one.clients) for one in schedule.rounds] == drawn
    ends = np.cumsum([max(clients) + 1 for clients in drawn])
    assert [one.seconds for one in schedule.rounds] == ends.tolist()
    assert schedule.metrics(2) == {"simulated_seconds": ends[1]}


@pytest.mark.parametrize(
    ("processed", "seconds"),
    [(lambda held: 3 * held, 18.0), (lambda held: 4 * np.minimum(held, 2), 8.0)],
)
def test_seconds_are_those_of_the_examples_of_a_round(processed, seconds):
    assert scheduled(SECOND, rounds=1).rounds[0].seconds == 6.0
    assert scheduled(SECOND, rounds=1, processed=processed).rounds[0].seconds == seconds


def test_clients_without_labels_are_drawn_as_without_a_clock_and_train_for_no_time():
    clients = with_labels(0, 3, 0, 0, 5, 0)
    clock = Clock(seconds_per_example=1.0, seconds_per_round=0.25)
    schedule = scheduled_on_labels(clock, clients, 2, rounds=20)
    drawn = [tuple(sample_clients(Sampling(2), clients, 5, n)) for n in range(1, 21)]
    assert [one.clients for one in schedule.rounds] == drawn
    durations = [0.25 + max({1: 3, 4: 5}.get(client, 0) for client in each) for each in drawn]
    assert [one.seconds for one in schedule.rounds] == np.cumsum(durations).tolist()
    assert {0.25, 3.25, 5.25} == set(durations)


def test_rounds_of_the_server_alone_take_no_time():
    """With labels at the server; then clients train on all that they hold."""
    examples = np.zeros((3, 2), np.float32)
    clients = [(examples[: j + 2], [-1] * (j + 2)) for j in range(2)]
    at_server = jaxfed.Federation.from_clients(clients, server=(examples, [0, 1, 0]), num_classes=2)
    options = {"last_with_labels": 2, "federation": at_server}
    schedule = scheduled(SECOND, rounds=3, **options)
    assert rounds_of(schedule) == [((0, 1), 0.0), ((0, 1), 0.0), ((0, 1), 3.0)]
    assert schedule.metrics(1) == {"simulated_seconds": 0.0}
