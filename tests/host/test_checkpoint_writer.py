"""Saves beside a run: what is copied, when the next is due, and who hears that one has failed."""

import errno
import logging
import threading

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


def stopped_by(exception, checkpoints, as_it_leaves=lambda: None):
    """A run that leaves with an exception while its first save is being written."""
    with CheckpointWriter(checkpoints, every=0) as saves:
        saves.save(1, np.zeros(2), {})
        as_it_leaves()
        raise exception


def test_leaving_waits_for_what_is_being_written(gated):
    class Stop(BaseException):
        pass

    with pytest.raises(Stop):
        stopped_by(Stop(), gated, as_it_leaves=threading.Timer(0.05, gated.gate.set).start)
    assert gated.steps() == [1]


def test_every_so_many_rounds_a_save_is_whole_at_once(gated):
    gated.gate.set()
    with CheckpointWriter(gated, every=2) as saves:
        assert [saves.are_due(number, is_last=number == 5) for number in range(1, 6)] == [
            *(False, True, False, True, True)
        ]
        saves.save(2, np.zeros(2), {})
        assert gated.steps() == [2]
    assert gated.writers == [True]


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


def test_a_failure_is_heard_where_the_run_ends(gated):
    gated.failure = FULL
    gated.gate.set()
    saves = CheckpointWriter(gated, every=0)
    saves.save(1, np.zeros(2), {})
    with pytest.raises(OSError, match="No space"), saves:
        pass


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


def test_a_full_disk_leaves_what_was_there(tmp_path, full_disk):
    checkpoints = Checkpoints(tmp_path)
    saves = CheckpointWriter(checkpoints, every=0)
    saves.save(1, np.zeros(2), {"step": 1})
    saves.join()
    with full_disk(after=400):
        saves.save(2, np.zeros(1000), {"step": 2})
        with pytest.raises(OSError, match=r"2\.npz"):
            saves.join()
    assert [file.name for file in tmp_path.iterdir()] == ["1.npz"]
    with saves:
        pass
    assert checkpoints.latest().progress == {"step": 1}
