"""What signals do to processes that others started, and to those without a terminal any more."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from jaxfed.host.interruption import Interrupted, Interruption
from jaxfed.host.parallel.workers import worker_processes

WITH_A_CHILD = """
import os, subprocess, sys
code = "import time; from jaxfed.host.interruption import end_with; end_with({}); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code.format(os.getpid())])
print(child.pid, flush=True)
child.wait()
"""


def is_running(pid):
    """Neither gone nor a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends(pid, seconds=15):
    until = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_running(pid)


def test_a_process_ends_with_the_one_that_started_it():
    parent = subprocess.Popen([sys.executable, "-c", WITH_A_CHILD], stdout=subprocess.PIPE)
    with parent:
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    assert ends(child)


def pid_after(seconds):
    time.sleep(seconds)
    return os.getpid()


def test_the_terminals_signals_are_the_parents():
    """Ctrl-C and a hang-up go to all processes of a terminal: workers finish what the round needs."""
    with worker_processes(1) as mapped:
        (results,) = (mapped(pid_after, [0, 0.5]),)
        worker = next(iter(results))
        for signum in (signal.SIGINT, signal.SIGHUP):
            os.kill(worker, signum)
        assert list(results) == [worker]
        assert list(mapped(pid_after, [0])) == [worker]
    assert ends(worker)


UNTIL_HANG_UP = """
import os, sys, time
from pathlib import Path
from jaxfed.host.interruption import Interrupted, Interruption

done, last, status = Path(sys.argv[1]), Path(sys.argv[2]), 0
try:
    with Interruption() as interruption:
        with interruption.deferred():
            print("ready", flush=True)
            while not interruption.is_pending:
                time.sleep(0.01)
            time.sleep(0.5)
            print("the round is saved", flush=True)
            done.touch()
except Interrupted as interrupted:
    status = interrupted.exit_status
print("stopped", file=sys.stderr, flush=True)
while not last.exists():
    time.sleep(0.01)
sys.exit(status)
"""


@pytest.mark.usefixtures("hang_ups_arrive")
def test_a_terminal_that_hangs_up_is_a_request_to_stop(tmp_path):
    ours, theirs = pty.openpty()
    saved, last = tmp_path / "saved", tmp_path / "last"
    process = subprocess.Popen(
        [sys.executable, "-c", UNTIL_HANG_UP, str(saved), str(last)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    assert b"ready" in os.read(ours, 100)
    os.close(ours)
    for _ in range(5):  # the shell's and the system's own: not "again to stop now", nor later
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
    last.touch()  # not before: Python ends with the system's own handlers
    assert process.wait(timeout=30) == 129
    assert saved.exists()


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption, interruption.deferred():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interruption.is_pending
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_between_rounds_is_raised_at_once():
    with Interruption(), pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_in_a_round_is_answered_and_a_second_one_is_the_systems(capfd):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with suppress(Interrupted), Interruption() as interruption, interruption.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        assert "stopping after this round; again to stop now" in capfd.readouterr().err
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert interruption.pending == signal.SIGINT
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
