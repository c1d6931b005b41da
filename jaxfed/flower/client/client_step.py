"""A client's side of a step, exactly once: the reply is a function of the stored state and the request.

Flower starts a new process for each message, may send a message again, and a process can die at any point. So

* the new state, then the reply, are on disk before the reply is returned;
* the same request again gets the stored reply, and nothing is computed;
* the same step with other content is refused, and so is a step before the last one: a party of a protocol
  that is replayed from its seed would otherwise encrypt two texts under one nonce;
* a second process in the same folder is refused while the first one works;
* the text of an exception stays at the client: only its class leaves, and the key of a `UsageError`;
* each reply prints a line for the console of `launch.flower client`: the bytes that leave, or why none do.

    FOLDER/state/               mode 0700, files 0600
        .lock
        RUN/data                checksum of the client's data
        RUN/last                the last step: its number, the request's hash, the reply
        RUN/NUMBER.state        the state after that step

A state whose entry `once` is True serves the next step of the run alone. That step deletes it, also if it
fails or continues from another state. Parties that derive keys or nonces from a stored seed need it: a server
could otherwise continue twice from one state, or learn from errors which of many messages fit the data.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from absl import logging

from jaxfed.errors import UsageError
from jaxfed.flower.client.client_data import PRIVATE_FILE, STATE, private_folder, write_private
from jaxfed.flower.messages import records, steps
from jaxfed.flower.messages.records import BadMessage, Record, one_line
from jaxfed.flower.messages.steps import Failure, Step, content_of, failed, step_of
from jaxfed.host import storage

# (step, state or None, content) -> (new state or None, content of the reply)
Compute = Callable[[Step, Record | None, Record], tuple[Record | None, Record]]

ONCE = "once"
CONSOLE = "jaxfed client: "  # prefix of lines for the console

_LAST, _STATE, _DATA = "last", ".state", "data"
_RUNS_KEPT = 8
_STATES_KEPT = 256  # of a run, whatever the server says


class StepRefused(Exception):
    """A request that this client does not serve; the text holds nothing of its data and may leave."""


class StateLost(StepRefused):
    """The client does not have the state that the request continues from."""


def perform(folder: Path, request: Record, compute: Compute, *, client: int) -> Record:
    """Serve a request to a client: compute its reply, or return the stored one, or say why there is none.

    `compute` must return a state, {} at least, in steps of an exchange with `continues=True`.
    """

    def serve(step: Step) -> Record:
        if step.client != client:
            raise StepRefused(f"this is client {client}, not client {step.client}")
        with _locked(folder / STATE) as state_folder:
            return _perform(state_folder / step.run, step, request, compute)

    return _guarded(request, serve)


def answer(request: Record, compute: Callable[[Step, Record], Record]) -> Record:
    """Serve a request that needs no state and may be repeated with other content, as a registration."""
    return _guarded(request, lambda step: steps.request(step, compute(step, content_of(request))))


def check_data(folder: Path, run: str, checksum: str, *, begins: bool = False) -> None:
    """Refuse data other than those of a run's first registration, whose checksum stays at the client.

    `begins`: this is a registration; a step holds the lock.
    """
    file = folder / STATE / run / _DATA
    with _locked(folder / STATE) if begins else nullcontext():
        if begins and not file.exists():
            _run_folder(file.parent)
            _write(file, {_DATA: checksum})
        if not file.exists() or records.from_bytes(file.read_bytes())[_DATA] != checksum:
            raise StepRefused("this client's data are not those of its registration")


def _guarded(request: Record, serve: Callable[[Step], Record]) -> Record:
    """Serve a request; every exception becomes a reply that says no more of it than it may."""
    step = None
    try:
        step = step_of(request)
        answer = serve(step)
        _print_line(step, _leaving(content_of(answer)))
        return answer
    except Exception as error:  # whatever the step raises; its text may hold data
        return refused(step, error)


def refused(step: Step | None, error: Exception) -> Record:
    """Log an exception, print its line, and return a reply that reveals only its class and key.

    Texts of `StepRefused` and `BadMessage` hold no data, and leave too.
    """
    kind = type(error).__name__
    reason = f"{error}" if isinstance(error, StepRefused) else f"{kind}: {error}"
    _print_line(step, f"refused, {one_line(reason)}")
    if isinstance(error, StepRefused | BadMessage):
        return failed(step, Failure(kind, text=str(error)))
    logging.error("the step failed", exc_info=error)
    key = f"{error.owner}.{error.key}".strip(".") if isinstance(error, UsageError) else ""
    return failed(step, Failure(kind, key))


def _leaving(content: Record) -> str:
    """Return a line with the bytes of a reply's content, for each kind of it."""
    sizes = Counter[str]()
    for name, value in content.items():
        kind = name.removeprefix("reply.").removeprefix("update.").partition(".")[0]
        sizes[kind] += records.num_bytes({name: value})
    kinds = ", ".join(f"{kind} {size:,}" for kind, size in sorted(sizes.items()) if size)
    return f"{sizes.total():,} bytes leave: {kinds}"


def _print_line(step: Step | None, text: str) -> None:
    where = "a message" if step is None else f"round {step.round}, {step.name}"
    print(f"{CONSOLE}{where}: {text}", flush=True)


class _Last(NamedTuple):
    """The last step that was served, the hash of its request, and the step whose state it deletes; 0: none.

    `is_once`: its own state serves once.
    """

    number: int = 0
    fingerprint: str = ""
    consumed: int = 0
    is_once: bool = False


def _perform(folder: Path, step: Step, request: Record, compute: Compute) -> Record:
    """Serve a request in a run's folder, under the lock."""
    fingerprint = records.fingerprint(request)
    last, reply = _read_last(folder)
    if step.number < last.number:
        raise StepRefused(f"step {step.number} is older than the last one, {last.number}")
    if step.number == last.number:
        if fingerprint != last.fingerprint:
            raise StepRefused(f"step {step.number} was sent again with other content")
        return reply
    _state_file(folder, last.consumed).unlink(missing_ok=True)  # if its process was killed
    consumed = last.number if last.is_once else 0
    state = _read_state(folder, step.after) if step.after else None
    if state is not None and state.get(ONCE) is True and step.after != consumed:
        raise StateLost(f"the state after step {step.after} served the next step alone")
    try:
        new_state, content = compute(step, state, content_of(request))
    except Exception:
        if step.after == consumed:
            _state_file(folder, consumed).unlink(missing_ok=True)
        raise
    answer = steps.request(step, content)
    _run_folder(folder)
    if new_state is not None:
        _write(_state_file(folder, step.number), new_state)
    is_once = new_state is not None and new_state.get(ONCE) is True
    served = records.packed(_Last(step.number, fingerprint, consumed, is_once))
    _write(folder / _LAST, records.prefixed(served, "last") | records.prefixed(answer, "reply"))
    stored = sorted(int(file.stem) for file in folder.glob(f"*{_STATE}"))
    for number in stored:
        if number < step.oldest or number == consumed or number in stored[:-_STATES_KEPT]:
            _state_file(folder, number).unlink()
    return answer


@contextmanager
def _locked(state_folder: Path) -> Iterator[Path]:
    """Make the folder, and hold its lock."""
    private_folder(state_folder.parent, state_folder.name)
    try:
        with storage.lock(state_folder / ".lock") as descriptor:
            os.fchmod(descriptor, PRIVATE_FILE)
            storage.remove_partial_files(state_folder)
            yield state_folder
    except BlockingIOError as error:
        raise StepRefused("another process of this client is serving a step") from error


def _run_folder(folder: Path) -> None:
    """Make the folder of a run, or clean it; of a new one's others, only those served last are kept."""
    is_new = not folder.exists()
    private_folder(folder.parent, folder.name)
    storage.remove_partial_files(folder)
    if is_new:
        others = [path for path in folder.parent.iterdir() if path.is_dir() and path != folder]
        others.sort(key=lambda run: run.stat().st_mtime)  # of its last file
        for other in others[: max(0, len(others) + 1 - _RUNS_KEPT)]:
            shutil.rmtree(other)


def _state_file(folder: Path, number: int) -> Path:
    return folder / f"{number}{_STATE}"


def _read_state(folder: Path, number: int) -> Record:
    try:
        return records.from_bytes(_state_file(folder, number).read_bytes())
    except (FileNotFoundError, BadMessage) as error:
        wrong = "damaged" if isinstance(error, BadMessage) else "not here"
        raise StateLost(f"the state after step {number} is {wrong}") from error


def _read_last(folder: Path) -> tuple[_Last, Record]:
    file = folder / _LAST
    try:
        stored = records.from_bytes(file.read_bytes()) if file.exists() else {}
        return records.unpacked(_Last, records.part(stored, "last")), records.part(stored, "reply")
    except BadMessage as error:
        raise StepRefused("the file of the last step is damaged") from error


def _write(file: Path, record: Record) -> None:
    """Write a private file that is on disk, under its name, when this returns."""
    write_private(file, records.to_bytes(record))
    descriptor = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
