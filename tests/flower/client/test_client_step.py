"""A client's step happens once: whatever is repeated, changed, late, crashed or damaged."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from jaxfed.errors import UsageError
from jaxfed.flower.client import client_step
from jaxfed.flower.messages import steps
from jaxfed.flower.messages.records import BadMessage
from jaxfed.flower.messages.steps import Step, content_of, failure_of
from jaxfed.host import storage

RUN = "digits-1"


def asked(number, *, after=0, oldest=0, run=RUN, client=2, **content):
    step = Step(run, number, "train", round=number, client=client, after=after, oldest=oldest)
    return steps.request(step, content)


class Counter:
    """A client that adds what it gets to what it has, and counts its calls."""

    def __init__(self, once=False):
        self.calls, self.once = 0, once

    def __call__(self, step, state, content):
        self.calls += 1
        total = (0 if state is None else state["total"]) + content["add"]
        return {"total": total} | ({"once": True} if self.once else {}), {"total": total}


def served(folder, request, compute, client=2):
    return client_step.perform(folder, request, compute, client=client)


def total(reply):
    assert failure_of(reply) is None, failure_of(reply)
    return content_of(reply)["total"]


def refusal(reply):
    failure = failure_of(reply)
    assert failure is not None
    assert content_of(reply) == {}
    return failure


def states(folder):
    return sorted(path.name for path in (folder / "state" / RUN).glob("*.state"))


def model(step, state, content):
    delta = np.zeros(2, np.float32)
    reply = {"update.delta.a": delta, "update.delta.b": delta, "update.weight": 3.0, "trains": True}
    return {}, {f"reply.{name}": value for name, value in reply.items()}


def raising(error):
    def compute(step, state, content):
        raise error

    return compute


# What a client computes -> its line, and class and key of the error that leaves, if any
LINES = {
    "a number": (Counter(), "8 bytes leave: total 8", None),
    "a model": (model, "25 bytes leave: delta 16, trains 1, weight 8", None),
    "refusal": (
        raising(client_step.StepRefused("too few")),
        "refused, too few",
        ("StepRefused", "", "too few"),
    ),
    "bad message": (
        raising(BadMessage("a\nb")),
        "refused, BadMessage: a b",
        ("BadMessage", "", "a b"),
    ),
    "error": (
        raising(UsageError("row\n7", key="mu", owner="fedprox", value="SECRET")),
        "refused, UsageError: fedprox.mu='SECRET': row 7",
        ("UsageError", "fedprox.mu", ""),
    ),
    "other error": (
        raising(OSError(28, "SECRET")),
        "refused, OSError: [Errno 28] SECRET",
        ("OSError", "", ""),
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_each_reply_is_a_line_of_the_console_and_of_an_error_little_leaves(tmp_path, capsys, case):
    compute, line, failure = LINES[case]
    for _ in range(2):  # also one that is stored
        reply = served(tmp_path, asked(3, add=1), compute)
        assert failure_of(reply) == failure
        assert "SECRET" not in repr(reply)
    line = f"{client_step.CONSOLE}round 3, train: {line}\n"
    assert capsys.readouterr().out == line * 2


def test_a_request_that_comes_again_gets_the_stored_reply(tmp_path):
    """With other content it is refused: its party would encrypt two texts under one nonce."""
    compute, request = Counter(), asked(1, add=3, weights=np.arange(3))
    first = served(tmp_path, request, compute)
    for changed in (asked(1, add=4), asked(1, add=3, more=b""), asked(1, add=3.0)):
        failure = refusal(served(tmp_path, changed, compute))
        assert failure.text == "step 1 was sent again with other content"
    assert served(tmp_path, request, compute) == first
    assert compute.calls == 1


def test_states_stay_until_the_server_does_not_need_them(tmp_path):
    compute = Counter()
    for number in range(1, 5):
        served(tmp_path, asked(number, add=1, after=number - 1), compute)
    assert states(tmp_path) == ["1.state", "2.state", "3.state", "4.state"]
    assert total(served(tmp_path, asked(5, add=1, after=2, oldest=2), compute)) == 3
    assert states(tmp_path) == ["2.state", "3.state", "4.state", "5.state"]


def test_states_without_end(tmp_path, monkeypatch):
    """A server that never says which states it needs no more."""
    monkeypatch.setattr(client_step, "_STATES_KEPT", 3)
    for number in range(1, 13):
        served(tmp_path, asked(number, add=1, after=number - 1), Counter())
    assert states(tmp_path) == ["10.state", "11.state", "12.state"]


def test_a_state_for_one_use_is_used_once(tmp_path):
    """A server that goes back cannot make a party continue twice from one seed."""
    compute = Counter(once=True)
    served(tmp_path, asked(1, add=1), compute)
    request = asked(2, add=1, after=1)
    assert total(served(tmp_path, request, compute)) == 2
    assert total(served(tmp_path, request, compute)) == 2
    assert states(tmp_path) == ["2.state"]
    assert refusal(served(tmp_path, asked(3, add=9, after=1), compute)).kind == "StateLost"
    assert compute.calls == 2


class Killed(BaseException):
    pass


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_process_that_dies_while_it_writes_serves_the_step_again(tmp_path, monkeypatch, writes):
    """Before its state is written, before its reply is, and before old states are deleted."""
    compute = Counter(once=True)
    served(tmp_path, asked(1, add=1), compute)
    request = asked(2, add=1, after=1)
    real, done = os.fsync, []
    unlink = client_step.Path.unlink

    def writes_some(descriptor):
        if len(done) == writes * 2:  # a file, and its folder
            raise Killed
        done.append(descriptor)
        real(descriptor)

    def deletes_none(path, missing_ok=False):
        if path.name == "1.state":
            raise Killed
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", writes_some)
        patched.setattr(client_step.Path, "unlink", deletes_none)
        with pytest.raises(Killed):
            served(tmp_path, request, compute)
    if writes == 1:  # nothing goes on from a step that was not served
        assert refusal(served(tmp_path, asked(3, add=1, after=2), compute)).kind == "StateLost"
    assert total(served(tmp_path, request, compute)) == 2
    assert compute.calls == (2 if writes == 2 else 3)
    assert total(served(tmp_path, asked(3, add=1, after=2), compute)) == 3
    assert refusal(served(tmp_path, asked(4, add=1, after=1), compute)).kind == "StateLost"
    assert not list((tmp_path / "state" / RUN).glob(".*"))


def test_folders_and_files_are_private(tmp_path):
    before = os.umask(0)
    try:
        (tmp_path / "state").mkdir(mode=0o755)
        served(tmp_path, asked(1, add=3), Counter())
        client_step.check_data(tmp_path, RUN, "checksum", begins=True)
    finally:
        os.umask(before)
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "state", *(tmp_path / "state").rglob("*"))
    }
    folders = {"state", f"state/{RUN}"}
    assert len(modes) == 6
    assert modes == {name: 0o700 if name in folders else 0o600 for name in modes}


def test_a_second_process_in_the_folder_is_refused(tmp_path):
    compute = Counter()
    (tmp_path / "state").mkdir()
    with storage.lock(tmp_path / "state" / ".lock"):
        failure = refusal(served(tmp_path, asked(1, add=3), compute))
    assert failure.text == "another process of this client is serving a step"
    assert total(served(tmp_path, asked(1, add=3), compute)) == 3


def test_a_damaged_file_of_the_last_step_stops_the_run(tmp_path):
    compute = Counter()
    served(tmp_path, asked(1, add=3), compute)
    file = tmp_path / "state" / RUN / "last"
    file.write_bytes(file.read_bytes()[:-1])
    assert "damaged" in refusal(served(tmp_path, asked(2, add=3), compute)).text
    assert compute.calls == 1


@pytest.mark.parametrize("damage", ["deleted", "cut"])
def test_a_lost_state_is_said(tmp_path, damage):
    served(tmp_path, asked(1, add=3), Counter())
    file = tmp_path / "state" / RUN / "1.state"
    file.unlink() if damage == "deleted" else file.write_bytes(file.read_bytes()[:-1])
    assert refusal(served(tmp_path, asked(2, add=3, after=1), Counter())).kind == "StateLost"


def test_data_are_those_of_the_runs_first_registration(tmp_path):
    served(tmp_path, asked(1, add=3), Counter())
    with pytest.raises(client_step.StepRefused, match="data are not those of its registration"):
        client_step.check_data(tmp_path, RUN, "a")
    for begins in (True, True, False):
        client_step.check_data(tmp_path, RUN, "a", begins=begins)
        with pytest.raises(client_step.StepRefused):
            client_step.check_data(tmp_path, RUN, "b", begins=begins)
    client_step.check_data(tmp_path, "another", "b", begins=True)


def test_an_app_hands_messages_over_without_jax():
    code = "from jaxfed.flower.messages import records, steps; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"jax", "flax", "scipy"}.isdisjoint(done.stdout.split())
