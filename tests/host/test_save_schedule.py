"""When a run saves, by a clock that the test winds."""

import numpy as np
import pytest

from jaxfed.host.save_schedule import SaveSchedule


class Clock:
    seconds = 100.0

    def __call__(self):
        return self.seconds


def played(round_seconds, save_seconds, num_rounds, every=0):
    """The times at which each save began and ended, from 0, and when the last round ended."""
    clock = Clock()
    schedule = SaveSchedule(every, clock)
    saves = []
    for number in range(1, num_rounds + 1):
        clock.seconds += round_seconds
        if schedule.is_due(number, is_last=number == num_rounds):
            began = clock.seconds - 100
            with schedule.saving():
                clock.seconds += save_seconds
            saves.append((began, clock.seconds - 100))
    return np.array(saves).reshape(-1, 2), clock.seconds - 100


CHEAP = [(0.02, 0.002), (0.1, 0.05), (1.0, 0.14), (4.9, 0.1)]


@pytest.mark.parametrize(("round_seconds", "save_seconds"), [*CHEAP, (0.1, 3.0), (20.0, 2.0)])
def test_by_the_clock_saving_takes_3_percent_at_most(round_seconds, save_seconds):
    saves, total = played(round_seconds, save_seconds, num_rounds=int(600 / round_seconds))
    assert len(saves) > 1
    assert np.diff(saves, axis=1)[1:].sum() <= 0.03 * total  # the first tells what one costs


@pytest.mark.parametrize(("round_seconds", "save_seconds"), CHEAP)
def test_by_the_clock_ten_seconds_of_work_are_lost_at_most(round_seconds, save_seconds):
    saves, total = played(round_seconds, save_seconds, num_rounds=int(600 / round_seconds))
    # Killed when the next save has almost ended, the work since the last one's start is lost.
    ends = np.append(saves[:, 1], total)
    assert np.diff(ends, prepend=0).max() <= 10


def test_a_long_round_is_saved_when_it_ends():
    saves, _ = played(round_seconds=60.0, save_seconds=0.5, num_rounds=4)
    np.testing.assert_allclose(saves[:, 0], [60, 120.5, 181, 241.5])


def test_every_so_many_rounds_and_the_last():
    saves, _ = played(round_seconds=1.0, save_seconds=0.0, num_rounds=7, every=3)
    np.testing.assert_allclose(saves[:, 0], [3, 6, 7])
