"""Rendezvous of a run's processes before they connect: all are present and expect the same number.

JAX's runtime waits five minutes for missing processes without a message, ignores signals meanwhile, and ends
the process with a trace. So processes meet here first, over plain TCP, at the coordinator's port. Process 0
then releases the port to the runtime:

    process I -> 0      "jaxfed N I"
    process 0 -> I      "go" when all are present, or a line with the error

A process that ends while it waits counts as missing, and may connect again.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress

from jaxfed.errors import UsageError

LONGEST_WAIT = 300.0  # seconds, as in JAX
_QUIET = 2.0  # seconds until the missing processes are named
_GREETING_WAIT = 5.0  # seconds for a connected process to identify itself
_LOOK_AGAIN = 0.05
_MOST_BYTES = 4096
_GREETING, _GO = "jaxfed", "go"


def meet(
    host: str,
    port: int,
    num_processes: int,
    process_id: int,
    *,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Wait until all processes are present; the port is free afterwards.

    Args:
        host: name of process 0's host, as the other processes resolve it.
        port: of the coordinator.
        num_processes: N.
        process_id: I, 0 to N - 1.
        tell: receives, once, a line with the missing processes.

    Raises:
        UsageError: a host that is not found, a port that is taken, another number of processes, the same I
            twice, or a process that is missing after `LONGEST_WAIT`.
    """
    asked = f"--coordinator={host}:{port}"
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"{asked}: the host is not found: {error.strerror or error}") from error
    until = _Patience(asked, tell)
    if process_id == 0:
        _gather(asked, port, num_processes, until)
    else:
        _report(asked, (host, port), f"{_GREETING} {num_processes} {process_id}", until)


class _Patience:
    """Names the missing processes once, and limits the wait."""

    def __init__(self, asked: str, tell: Callable[[str], None]) -> None:
        self._asked, self._tell = asked, tell
        self._begun, self._has_told = time.monotonic(), False

    def wait_for(self, whom: str) -> float:
        """Seconds that are left.

        Raises:
            UsageError: no time is left.
        """
        waited = time.monotonic() - self._begun
        if waited > LONGEST_WAIT:
            raise UsageError(
                f"{self._asked}: {whom} did not connect within {LONGEST_WAIT:g} seconds"
            )
        if waited > _QUIET and not self._has_told:
            self._has_told = True
            self._tell(f"{self._asked}: waiting for {whom}")
        return LONGEST_WAIT - waited


def _gather(asked: str, port: int, num_processes: int, until: _Patience) -> None:
    """Process 0: accept all others, then release them."""
    with ExitStack() as stack:
        listening = stack.enter_context(_listening(asked, port))
        listening.settimeout(_LOOK_AGAIN)
        there: dict[int, socket.socket] = {}
        try:
            while missing := sorted({*range(1, num_processes)} - there.keys()):
                until.wait_for(_named(missing, num_processes))
                with suppress(OSError):  # none has connected yet, or one has left again
                    guest = stack.enter_context(listening.accept()[0])
                    _welcome(guest, num_processes, there)
                for number in [number for number, guest in there.items() if _has_left(guest)]:
                    del there[number]
        except UsageError as error:
            _say_to_all(there.values(), str(error))
            raise
        listening.close()  # before any is released, which would find it in place of JAX's service
        _say_to_all(there.values(), _GO)


def _listening(asked: str, port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"{asked}: the port is in use; take another") from error
        raise UsageError(f"{asked}: {error.strerror or error}") from error


def _welcome(guest: socket.socket, num_processes: int, there: dict[int, socket.socket]) -> None:
    """Read the greeting and register the process; ignore clients of other protocols."""
    match _line(guest, _GREETING_WAIT).split():
        case [greeting, number, process] if greeting == _GREETING and process.isdecimal():
            if number != str(num_processes):
                problem = (
                    f"--num_processes={number} at process {process}, {num_processes} at process 0"
                )
                _say_to_all([guest], problem)
                raise UsageError(problem)
            if int(process) in there and not _has_left(there[int(process)]):
                _say(
                    guest,
                    f"--process_id={process}: another process with this number has connected",
                )
            else:
                there[int(process)] = guest


def _report(asked: str, address: tuple[str, int], greeting: str, until: _Patience) -> None:
    """Process I: connect to process 0, and wait for its answer."""
    while True:
        left = until.wait_for("process 0")
        try:
            with socket.create_connection(address, timeout=min(left, _GREETING_WAIT)) as host:
                _say(host, greeting)
                answer = _answer(host, until)
        except OSError:  # not there yet
            time.sleep(_LOOK_AGAIN)
            continue
        if answer == _GO:
            break
        if answer:
            is_ours = answer.startswith("--")
            raise UsageError(
                answer if is_ours else f"{asked}: process 0 of jaxfed does not listen there"
            )
        time.sleep(_LOOK_AGAIN)  # it has ended, and may start again
    while not _is_open(address):  # JAX's service opens at the same port
        until.wait_for("process 0's service")
        time.sleep(_LOOK_AGAIN)


def _answer(host: socket.socket, until: _Patience) -> str:
    """Process 0's answer, waiting for all others."""
    while True:
        until.wait_for("the other processes")
        try:
            return _line(host, 1.0)
        except TimeoutError:
            continue


def _line(end: socket.socket, seconds: float) -> str:
    """Receive one line; empty if the other end has closed or sends nothing."""
    end.settimeout(seconds)
    said = b""
    try:
        while not said.endswith(b"\n") and len(said) < _MOST_BYTES:
            part = end.recv(_MOST_BYTES)
            if not part:
                break
            said += part
    except TimeoutError:
        if not said:
            raise
    return said.decode(errors="replace").strip()


def _say(end: socket.socket, line: str) -> None:
    end.settimeout(_GREETING_WAIT)
    end.sendall(f"{line}\n".encode())


def _say_to_all(guests: Iterable[socket.socket], line: str) -> None:
    """Send a line to all that are still connected."""
    for guest in guests:
        with suppress(OSError):
            _say(guest, line)


def _has_left(guest: socket.socket) -> bool:
    """True if the other end is closed; a waiting process sends nothing."""
    guest.settimeout(0)
    try:
        return not guest.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _is_open(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1.0):
            return True
    except OSError:
        return False


def _named(missing: list[int], num_processes: int) -> str:
    shown = ", ".join(map(str, missing[:8])) + ", ..." * (len(missing) > 8)
    return f"process{'es' * (len(missing) > 1)} {shown} of {num_processes}"
