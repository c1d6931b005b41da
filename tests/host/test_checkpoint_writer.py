"""Saves beside a run: what is copied, when the next is due, and who hears that one has failed."""

import errno
import logging
import threading
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.host import checkpoint
from jaxfed.host.checkpoint import Checkpoints, CheckpointWriter

FULL = OSError(errno.ENOSPC, "No space left on device")


class Gated(Checkpoints):
    """Checkpoints whose writing waits for the test, and fails where the test says so."""

    def __init__(self, path):
        super().__init__(path)
        self.gate, self.failure, self.writers = threading.Event(), None, []

    def write(self, step, leaves, progress):
        self.writers.append(threading.current_thread() is threading.main_thread())
        assert self.gate.wait(timeout=10), "nobody has let the writer write"
        if self.failure:
            raise self.failure
        super().write(step, leaves, progress)

    def steps(self):
        return sorted(int(file.stem) for file in self.path.glob("*.npz"))


@pytest.fixture
def gated(tmp_path, monkeypatch):
    """By this clock a save is due whenever the writer is free."""
    monkeypatch.setattr(checkpoint, "_MOST_LOST", 0.0)
    monkeypatch.setattr(checkpoint, "LARGEST_SHARE", 1e9)
    checkpoints = Gated(tmp_path)
    yield checkpoints
    checkpoints.gate.set()


def is_due(saves, number=1):
    return saves.are_due(number, is_last=False)


def test_what_is_saved_is_the_state_at_the_copy(gated):
    """Neither a donated buffer, nor one that NumPy writes in, nor a list that grows reaches the disk."""
    start = {"device": np.arange(4096.0, dtype=np.float32), "host": np.arange(3)}
    state = {"device": jnp.asarray(start["device"]) + 0, "host": start["host"].copy()}
    state["key"] = jax.random.key(3)
    donating = jax.jit(lambda x: x * -1, donate_argnums=0)
    with CheckpointWriter(gated, every=0) as saves:
        saves.save(1, state, {})
        moved = donating(state["device"])
        assert state["device"].is_deleted()
        state["host"] += 7
        gated.gate.set()
    np.testing.assert_array_equal(moved, -start["device"])
    template = {**start, "key": state["key"]}
    restored = gated.latest().state(template)
    np.testing.assert_array_equal(restored["device"], start["device"])
    np.testing.assert_array_equal(restored["host"], start["host"])
    assert restored["key"] == state["key"]


def test_one_save_at_a_time_and_none_in_a_queue(gated):
    with CheckpointWriter(gated, every=0) as saves:
        assert is_due(saves)
        saves.save(1, np.zeros(2), {})
        assert not is_due(saves)  # the run goes on
        assert gated.steps() == []
        gated.gate.set()
        saves.join()
        assert gated.steps() == [1]
        assert is_due(saves)
        saves.save(2, np.zeros(2), {})
        saves.save(3, np.zeros(2), {}, at_once=True)
        assert gated.steps() == [2, 3]
    assert gated.writers == [False, False, True]


def stopped_by(exception, checkpoints):
    """A run that leaves with an exception while its first save is being written."""
    with CheckpointWriter(checkpoints, every=0) as saves:
        saves.save(1, np.zeros(2), {})
        raise exception


ASKING = {
    "whether the next is due": is_due,
    "to save": lambda saves: saves.save(2, np.zeros(2), {}),
    "to save at once": lambda saves: saves.save(2, np.zeros(2), {}, at_once=True),
    "to join": lambda saves: saves.join(),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_a_failure_is_heard_once_by_who_asks_next(gated, ask):
    gated.failure = FULL
    gated.gate.set()
    with CheckpointWriter(gated, every=0) as saves:
        saves.save(1, np.zeros(2), {})
        if ask is is_due:
            wait_until_written(saves)
        with pytest.raises(OSError) as caught:
            ask(saves)
        assert caught.value is FULL
        gated.failure = None
        saves.save(2, np.zeros(2), {})
    assert gated.steps() == [2]


def wait_until_written(saves):
    """As a run does by its rounds."""
    while not saves._in_flight.done():
        pass


@pytest.mark.parametrize(("own", "is_said"), [(ValueError("own"), True), (OSError("own"), False)])
def test_a_run_that_leaves_with_an_exception_leaves_with_that(gated, caplog, own, is_said):
    gated.failure = FULL
    gated.gate.set()
    with caplog.at_level(logging.WARNING), pytest.raises(type(own), match="own"):
        stopped_by(own, gated)
    assert ("the last save has failed: [Errno 28] No space left" in caplog.text) == is_said


# --- the schedule, by a clock that the test winds ------------------------------------------------


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
def test_by_the_clock_the_run_waits_and_loses_little(round_seconds, copy_seconds, write_seconds):
    """3 % of its time at most, and ten seconds of work where rounds and writing are short."""
    saves, total = played(round_seconds, int(600 / round_seconds), copy_seconds, write_seconds)
    assert len(saves) > 1
    assert (saves[1:, 1] - saves[1:, 0]).sum() <= 0.03 * total  # the first tells what one costs
    if (round_seconds, copy_seconds, write_seconds) in CHEAP:
        assert most_lost(saves, total) <= 10


def test_a_long_round_is_saved_when_it_ends():
    saves, _ = played(round_seconds=60.0, num_rounds=4, copy_seconds=0.5, write_seconds=3.0)
    np.testing.assert_allclose(saves[:, 0], [60, 120.5, 181, 241.5])


def test_every_so_many_rounds_and_the_last():
    saves, _ = played(round_seconds=1.0, num_rounds=7, every=3)
    np.testing.assert_allclose(saves[:, 0], [3, 6, 7])
