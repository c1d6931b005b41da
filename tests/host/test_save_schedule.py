"""When a run saves, by a clock that the test winds."""

from unittest import mock

import numpy as np
import pytest

from jaxfed.host import checkpoint
from jaxfed.host.checkpoint import CheckpointWriter


class Clock:
    seconds = 100.0

    def __call__(self):
        return self.seconds


class Nowhere:
    """Checkpoints that are not written."""

    def save(self, step, state, progress):
        pass

    write = save


def played(round_seconds, num_rounds, copy_seconds=0.0, write_seconds=0.0, every=0):
    """When each copy began, it ended, and its writing did, from 0; and when the last round ended."""
    clock = Clock()
    saves = []

    def copied(state):
        clock.seconds += copy_seconds

    with (
        mock.patch.object(checkpoint, "copied_leaves", copied),
        CheckpointWriter(Nowhere(), every, clock) as writer,
    ):
        for number in range(1, num_rounds + 1):
            clock.seconds += round_seconds
            is_writing = bool(saves) and clock.seconds - 100 < saves[-1][2]
            writer.join()
            if not is_writing and writer.are_due(number, is_last=number == num_rounds):
                began = clock.seconds - 100
                writer.save(number, None, {})
                ended = clock.seconds - 100
                saves.append((began, ended, ended + write_seconds))
    return np.array(saves).reshape(-1, 3), clock.seconds - 100


def most_lost(saves, total):
    """Seconds of work: killed when a save has almost been written, it is that since the last one's copy."""
    copied = np.insert(saves[:, 0], 0, 0.0)
    return (np.append(saves[:, 2], total) - copied).max()


# Seconds of a round, of a copy, of its writing.
CHEAP = [(0.02, 0.001, 0.01), (0.1, 0.05, 0.5), (1.0, 0.14, 2.0), (4.8, 0.05, 0.1), (0.1, 0.1, 3.3)]
CHEAP += [(4.8, 0.05, 3.0)]  # the first save, too, has to allow for its writing
DEAR = [(0.1, 1.0, 10.0), (0.1, 0.1, 60.0), (20.0, 0.5, 2.0)]


@pytest.mark.parametrize(("round_seconds", "copy_seconds", "write_seconds"), [*CHEAP, *DEAR])
def test_by_the_clock_the_run_waits_3_percent_at_most(round_seconds, copy_seconds, write_seconds):
    saves, total = played(round_seconds, int(600 / round_seconds), copy_seconds, write_seconds)
    assert len(saves) > 1
    assert (saves[1:, 1] - saves[1:, 0]).sum() <= 0.03 * total  # the first tells what one costs


@pytest.mark.parametrize(("round_seconds", "copy_seconds", "write_seconds"), CHEAP)
def test_by_the_clock_ten_seconds_of_work_are_lost_at_most(
    round_seconds, copy_seconds, write_seconds
):
    saves, total = played(round_seconds, int(600 / round_seconds), copy_seconds, write_seconds)
    assert most_lost(saves, total) <= 10


def test_of_a_slow_disk_two_saves_and_a_round_are_lost_at_most():
    saves, total = played(1.0, 600, copy_seconds=0.1, write_seconds=60.0)
    assert most_lost(saves, total) <= 2 * 60.1 + 1.1


def test_a_long_round_is_saved_when_it_ends():
    saves, _ = played(round_seconds=60.0, num_rounds=4, copy_seconds=0.5, write_seconds=3.0)
    np.testing.assert_allclose(saves[:, 0], [60, 120.5, 181, 241.5])


def test_every_so_many_rounds_and_the_last():
    saves, _ = played(round_seconds=1.0, num_rounds=7, every=3)
    np.testing.assert_allclose(saves[:, 0], [3, 6, 7])
