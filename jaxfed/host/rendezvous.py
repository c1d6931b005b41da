"""Before several processes of one run connect: all are there, and were told the same number of them.

JAX's runtime waits five minutes without a word for who is missing, hears no signal meanwhile, and ends the
process with a trace. So processes meet here first, over plain TCP, at the coordinator's own port, which
process 0 then leaves to that runtime:

    process I -> 0      "jaxfed N I"
    process 0 -> I      "go" when all are there, or a line that says what is wrong

A process that ends while it waits is missed again, and may come a second time.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress

from jaxfed.errors import UsageError

LONGEST_WAIT = 300.0  # seconds, as JAX's own
_QUIET = 2.0  # seconds, after which it is said who is waited for
_GREETING_WAIT = 5.0  # seconds for who has connected to say who it is
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
    """Wait until all processes are there; the port is free afterwards.

    Args:
        host: of process 0, by the name under which the others know it.
        port: of the coordinator.
        num_processes: N.
        process_id: I, of 0 to N - 1.
        tell: hears, once, who is waited for.

    Raises:
        UsageError: a host that is not found, a port that is taken, another number of processes, the same I
            twice, or somebody who has not come in `LONGEST_WAIT`.
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
    """Says once who is waited for, and ends the waiting."""

    def __init__(self, asked: str, tell: Callable[[str], None]) -> None:
        self._asked, self._tell = asked, tell
        self._begun, self._has_told = time.monotonic(), False

    def wait_for(self, whom: str) -> float:
        """Seconds that are left.

        Raises:
            UsageError: none.
        """
        waited = time.monotonic() - self._begun
        if waited > LONGEST_WAIT:
            raise UsageError(f"{self._asked}: {whom} did not come in {LONGEST_WAIT:g} seconds")
        if waited > _QUIET and not self._has_told:
            self._has_told = True
            self._tell(f"{self._asked}: waiting for {whom}")
        return LONGEST_WAIT - waited


def _gather(asked: str, port: int, num_processes: int, until: _Patience) -> None:
    """Process 0: hear all the others, then let them go."""
    with ExitStack() as stack:
        listening = stack.enter_context(_listening(asked, port))
        listening.settimeout(_LOOK_AGAIN)
        there: dict[int, socket.socket] = {}
        try:
            while missing := sorted({*range(1, num_processes)} - there.keys()):
                until.wait_for(_named(missing, num_processes))
                with suppress(OSError):  # nobody has come yet, or somebody has gone again
                    guest = stack.enter_context(listening.accept()[0])
                    _welcome(asked, guest, num_processes, there)
                for number in [number for number, guest in there.items() if _has_left(guest)]:
                    del there[number]
        except UsageError as error:
            _say_to_all(there.values(), str(error))
            raise
        listening.close()  # before anybody is let go, who would meet it in place of JAX's service
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


def _welcome(
    asked: str, guest: socket.socket, num_processes: int, there: dict[int, socket.socket]
) -> None:
    """Hear who it is. Who speaks another language is left alone, and forgotten."""
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
                    f"--process_id={process}: that one is at {asked.partition('=')[2]} already",
                )
            else:
                there[int(process)] = guest


def _report(asked: str, address: tuple[str, int], greeting: str, until: _Patience) -> None:
    """Process I: find process 0, and wait for its word."""
    while True:
        left = until.wait_for("process 0")
        try:
            with socket.create_connection(address, timeout=min(left, _GREETING_WAIT)) as host:
                _say(host, greeting)
                answer = _answer(host, until)
        except OSError:  # nobody is there yet
            time.sleep(_LOOK_AGAIN)
            continue
        if answer == _GO:
            break
        if answer:
            is_ours = answer.startswith("--")
            raise UsageError(answer if is_ours else f"{asked}: is no port of jaxfed's process 0")
        time.sleep(_LOOK_AGAIN)  # it has ended, and may come again
    while not _is_open(address):  # the service that comes now at the same port
        until.wait_for("process 0's service")
        time.sleep(_LOOK_AGAIN)


def _answer(host: socket.socket, until: _Patience) -> str:
    """Process 0's line, however long the others take."""
    while True:
        until.wait_for("the other processes")
        try:
            return _line(host, 1.0)
        except TimeoutError:
            continue


def _line(end: socket.socket, seconds: float) -> str:
    """What is said in one line; nothing where the other end has closed, or says no text."""
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
    """To those who are still there."""
    for guest in guests:
        with suppress(OSError):
            _say(guest, line)


def _has_left(guest: socket.socket) -> bool:
    """Whether the other end is closed; who waits says nothing more."""
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
