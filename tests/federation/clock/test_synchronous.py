"""Synchronous rounds in simulated time, by hand: client j takes j + 1 seconds."""

import numpy as np
import pytest

import jaxfed
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Course, FederatedAlgorithm
from jaxfed.federation.clock import Clock, schedule_of
from jaxfed.federation.sampling import Sampling, sample_clients

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
    method = FederatedAlgorithm(*[None] * 3)
    method = method._replace(course=options.pop("course", Course()))
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
    options = {"course": Course(needs_labels=True), "federation": clients, **options}
    return scheduled(clock, size, rounds, **options)


def timed(tmp_path, text, **settings):
    (tmp_path / "t.csv").write_text("client,from,to\n" + text)
    return Clock(seconds_per_example=1.0, availability=str(tmp_path / "t.csv"), **settings)


def rounds_of(schedule):
    return [(one.clients, one.seconds, one.ended) for one in schedule.rounds]


def test_without_seconds_there_is_no_schedule():
    assert scheduled(Clock()) is None


def test_the_slowest_ends_a_round_of_the_usual_clients():
    schedule = scheduled(SECOND, 3)
    drawn = [sample_clients(Sampling(3), federation(), 5, number) for number in (1, 2, 3)]
    assert [list(one.clients) for one in schedule.rounds] == drawn
    ends = np.cumsum([max(clients) + 1 for clients in drawn])
    assert [one.seconds for one in schedule.rounds] == ends.tolist()
    assert schedule.metrics(2) == {"simulated_seconds": ends[1], "lost_share": 0.0}


@pytest.mark.parametrize(
    ("processed", "seconds"),
    [(lambda held: 3 * held, 18.0), (lambda held: 4 * np.minimum(held, 2), 8.0)],
)
def test_seconds_are_those_of_the_examples_of_a_round(processed, seconds):
    assert scheduled(SECOND, rounds=1).rounds[0].seconds == 6.0
    assert scheduled(SECOND, rounds=1, processed=processed).rounds[0].seconds == seconds


def test_rounds_on_labels_alone_take_their_time():
    options = {"course": Course(stage_1=1), "federation": federation(6, labels=2)}
    schedule = scheduled(SECOND, rounds=2, **options)
    assert [one.seconds for one in schedule.rounds] == [
        1.0,
        7.0,
    ]  # one label each; then all examples


def test_the_first_of_an_over_selection_count():
    schedule = scheduled(Clock(seconds_per_example=1.0, over_selection=1.6), 3)
    time = 0.0
    for number in (1, 2, 3):
        drawn = sample_clients(Sampling(5), federation(), 5, number)
        time += drawn[2] + 1
        one = schedule.rounds[number - 1]
        assert (one.clients, one.seconds, one.ended) == (tuple(drawn[:3]), time, 5)
    assert schedule.metrics(1)["lost_share"] == pytest.approx(2 / 5)


def test_a_deadline_ends_a_round_with_those_who_have_finished():
    schedule = scheduled(Clock(seconds_per_example=1.0, deadline=3.0), rounds=2)
    assert rounds_of(schedule) == [((0, 1, 2), 3.0, 6), ((0, 1, 2), 6.0, 6)]
    assert schedule.metrics(1)["lost_share"] == 0.5
    early = scheduled(Clock(seconds_per_example=1.0, deadline=9.0), rounds=2)
    assert [one.seconds for one in early.rounds] == [6.0, 12.0]  # nobody is waited for


def test_a_round_that_nobody_finishes_is_drawn_again():
    """One client of three: only client 0 meets the deadline, each other draw costs it."""
    schedule = scheduled(Clock(seconds_per_example=1.0, deadline=1.5), 1, rounds=20, number=3)
    time = 0.0
    for one in schedule.rounds:
        assert one.clients == (0,)
        time += 1.5 * (one.ended - 1) + 1.0
        assert one.seconds == time
    draws = sum(one.ended for one in schedule.rounds)
    assert 30 < draws < 110  # 60 on average
    firsts = [sample_clients(Sampling(1), federation(3), 5, n) == [0] for n in range(1, 21)]
    assert [one.ended == 1 for one in schedule.rounds] == firsts


def test_clients_without_labels_are_drawn_as_without_a_clock_and_train_for_no_time():
    clients = with_labels(0, 3, 0, 0, 5, 0)
    clock = Clock(seconds_per_example=1.0, seconds_per_round=0.25)
    schedule = scheduled_on_labels(clock, clients, 2, rounds=20)
    drawn = [tuple(sample_clients(Sampling(2), clients, 5, n)) for n in range(1, 21)]
    assert [one.clients for one in schedule.rounds] == drawn
    durations = [0.25 + max({1: 3, 4: 5}.get(client, 0) for client in each) for each in drawn]
    assert [one.seconds for one in schedule.rounds] == np.cumsum(durations).tolist()
    assert {0.25, 3.25, 5.25} == set(durations)
    assert {schedule.metrics(number)["lost_share"] for number in range(1, 21)} == {0.0}


def test_clients_without_labels_do_not_take_the_places_of_those_with_labels():
    """Half of the drawn clients count, and half of those with labels: the fastest, rounded up."""
    clients = with_labels(*[0] * 6, *range(1, 7))  # client j from 6 on takes j - 5 seconds
    clock = Clock(seconds_per_example=1.0, over_selection=2.0)
    schedule = scheduled_on_labels(clock, clients, 3, rounds=30)
    time, shares = 0.0, set()
    for number, one in enumerate(schedule.rounds, 1):
        drawn = np.array(sample_clients(Sampling(6), clients, 5, number))
        labeled, others = drawn[drawn >= 6], drawn[drawn < 6]
        share = -(-len(labeled) // 2)
        first = labeled[:share]
        time += first[-1] - 5
        shares.add((len(labeled), share))
        assert one.clients == (*others[: 3 - share], *first)
        assert (one.seconds, one.ended) == (time, 3 + len(labeled) - share)
    assert {(2, 1), (3, 2), (4, 2)} <= shares


def test_clients_without_labels_are_not_lost():
    clock = Clock(seconds_per_example=1.0, deadline=3.0)
    (one,) = scheduled_on_labels(clock, with_labels(0, 2, 7, 0), rounds=1).rounds
    assert one == ((0, 1, 3), 3.0, 4, ())  # client 2 is


def test_a_round_that_only_clients_without_labels_finish_is_drawn_again():
    clock = Clock(seconds_per_example=1.0, deadline=3.0)
    clients = with_labels(0, 2, 7)
    schedule = scheduled_on_labels(clock, clients, 1, rounds=40)
    firsts = [sample_clients(Sampling(1), clients, 5, n)[0] for n in range(1, 41)]
    assert set(firsts) == {0, 1, 2}
    for first, one in zip(firsts, schedule.rounds, strict=True):
        assert one.clients == ((0,) if first == 0 else (1,))
        assert (one.ended > 1) == (first == 2)


def test_time_goes_on_to_the_next_client_with_labels(tmp_path):
    clock = timed(tmp_path, "0,0,100\n1,20,24\n2,0,100\n0,100,105\n")
    found = rounds_of(scheduled_on_labels(clock, with_labels(0, 3, 0), rounds=2))
    assert found == [((0, 1, 2), 23.0, 3), ((0, 1, 2), 128.0, 4)]
    # In 23..24 client 1 is there once more, and lost.


def test_rounds_of_the_server_alone_take_no_time(tmp_path):
    """With labels at the server; then clients train on all that they hold, client 1 from second 4 on."""
    examples = np.zeros((3, 2), np.float32)
    clients = [(examples[: j + 2], [-1] * (j + 2)) for j in range(2)]
    at_server = jaxfed.Federation.from_clients(clients, server=(examples, [0, 1, 0]), num_classes=2)
    clock = timed(tmp_path, "1,4,50\n", deadline=3.5)
    options = {"course": Course(stage_1=2), "federation": at_server}
    schedule = scheduled(clock, rounds=3, **options)
    assert rounds_of(schedule) == [((), 0.0, 0), ((), 0.0, 0), ((1,), 7.0, 1)]
    assert schedule.cohort_size == 2
    assert schedule.metrics(1) == {"simulated_seconds": 0.0, "lost_share": 0.0}
    strict = Clock(seconds_per_example=1.0, deadline=0.5)  # and nobody is waited for in vain
    assert scheduled_on_labels(strict, at_server).rounds[-1] == ((), 0.0, 0, ())
    with pytest.raises(UsageError, match=r"nobody finishes round 3 .* takes 2 s"):
        scheduled(strict, rounds=3, **options)


def test_only_the_available_are_drawn_and_who_leaves_is_lost(tmp_path):
    clock = timed(tmp_path, "0,0,100\n2,0,2\n4,0,100\n5,90,100\n")
    (one,) = scheduled(clock, rounds=1).rounds
    assert one.clients == (0, 4)  # client 2 takes 3 seconds and has 2
    assert (one.seconds, one.ended) == (5.0, 3)


def test_without_a_deadline_the_last_who_leaves_ends_a_round(tmp_path):
    clock = timed(tmp_path, "0,0,100\n5,0,4\n")
    assert rounds_of(scheduled(clock, rounds=1)) == [((0,), 4.0, 2)]


def test_the_server_waits_until_the_deadline_for_who_has_left(tmp_path):
    clock = timed(tmp_path, "0,0,100\n5,0,4\n", deadline=50.0)
    assert rounds_of(scheduled(clock, rounds=1)) == [((0,), 50.0, 2)]


def test_with_nobody_there_time_goes_on_to_the_next_window(tmp_path):
    clock = timed(tmp_path, "1,10,13\n2,20,24\n")
    found = rounds_of(scheduled(clock, rounds=3))
    assert found == [((1,), 12.0, 1), ((2,), 23.0, 2), ((1,), 36.0, 2)]
    # In 12..13 client 1 is there once more, and lost; in 23..24 client 2.


def test_as_many_as_are_there_are_enough(tmp_path):
    clock = timed(tmp_path, "1,0,50\n2,0,50\n", over_selection=2.0)
    assert rounds_of(scheduled(clock, 3, rounds=1)) == [((1, 2), 3.0, 2)]


def test_clients_with_labels_are_drawn_as_elsewhere():
    clients, labeled = federation(6, labels=4), (4, 5)
    options = {"sampling": "proportional", "federation": clients, "rounds": 30}
    schedule = scheduled(SECOND, 3, **options)
    drawn = [sample_clients(Sampling(3, "proportional"), clients, 5, n) for n in range(1, 31)]
    assert [list(one.clients) for one in schedule.rounds] == drawn
    options["course"] = Course(needs_labels=True)
    assert {one.clients for one in scheduled(SECOND, 3, **options).rounds} == {labeled}
