"""Runs of several processes, on one machine or many: connection and agreement.

Every process runs the same program on the same data, as `jax.distributed` requires; arrays sharded over all
devices are their joint work. The functions here let processes agree on other things: that no process has
raised an error (`together`), that all have the same inputs (`check_same`), and the first process's value
(`from_first`). In a run of one process these functions do nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import jax
import numpy as np

from jaxfed.errors import UsageError

FROM_CLUSTER = "auto"
LONGEST_WAIT = 300.0  # seconds, as in JAX
_QUIET = 2.0  # seconds until a line says what is awaited
_LOOK_AGAIN = 0.05
# Errors of collectives and their service when a process is gone.
_OF_OTHERS = re.compile(r"gloo|nccl|connection|coordination|heartbeat|unavailable|deadline", re.I)


def connect(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    *,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Connect to the run's other processes, before any device is used; a no-op without a coordinator.

    JAX waits `LONGEST_WAIT` for missing processes, without a message, and ends this one with a trace if the
    port is taken or time is up. So the address is checked before, except on a cluster.

    Args:
        coordinator: HOST:PORT of process 0, the same for all processes; "auto" takes all three from
            the cluster's environment (Slurm, Open MPI, Kubernetes and others that JAX knows).
        num_processes: their number.
        process_id: number of this one, from 0.
        tell: receives a line if process 0 is awaited.

    Raises:
        UsageError: flags that do not fit together; a host that is not found, a port that is taken; process 0
            is missing after `LONGEST_WAIT`.
    """
    numbers = {"--num_processes": num_processes, "--process_id": process_id}
    given = [flag for flag, number in numbers.items() if number is not None]
    if coordinator is None or coordinator == FROM_CLUSTER:
        if given:
            raise UsageError(f"{given[0]}={numbers[given[0]]}: needs --coordinator=HOST:PORT")
        if coordinator is None:
            return
    else:
        host, _, port = coordinator.rpartition(":")
        if not re.fullmatch(r"\S+:[0-9]{1,5}", coordinator) or not 0 < int(port) < 2**16:
            raise UsageError(
                f"--coordinator={coordinator}: use HOST:PORT, or '{FROM_CLUSTER}' on a cluster"
            )
        for flag, number in numbers.items():
            if number is None:
                raise UsageError(f"{flag} is missing; --coordinator=HOST:PORT needs it")
        assert num_processes is not None
        assert process_id is not None
        if num_processes < 1:
            raise UsageError(f"--num_processes={num_processes}: use integers from 1 on")
        if not 0 <= process_id < num_processes:
            raise UsageError(f"--process_id={process_id}: use 0 to {num_processes - 1}")
        _check_address(coordinator, (host, int(port)), process_id, tell)
    # JAX would handle SIGTERM itself; here it requests a stop after this round.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = None if coordinator == FROM_CLUSTER else coordinator
    try:
        jax.distributed.initialize(address, num_processes, process_id)
    except (RuntimeError, ValueError) as error:
        lacking = "no cluster is found in the environment: " * (coordinator == FROM_CLUSTER)
        raise UsageError(f"--coordinator={coordinator}: {lacking}{error}") from error


def _check_address(
    coordinator: str, address: tuple[str, int], process_id: int, tell: Callable[[str], None]
) -> None:
    """Check that process 0 can listen at its port; in the others wait until it does."""
    host, port = address
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if process_id == 0:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
            return
    except OSError as error:
        wrong = error.strerror or str(error)
        if isinstance(error, socket.gaierror):
            wrong = f"the host is not found: {wrong}"
        elif error.errno == errno.EADDRINUSE:
            wrong = "the port is in use; take another"
        raise UsageError(f"--coordinator={coordinator}: {wrong}") from error
    begun, has_told = time.monotonic(), False
    while not _is_open(address):
        waited = time.monotonic() - begun
        if waited > LONGEST_WAIT:
            raise UsageError(
                f"--coordinator={coordinator}: process 0 did not start within {LONGEST_WAIT:g} seconds"
            )
        if waited > _QUIET and not has_told:
            has_told = True
            tell(f"--coordinator={coordinator}: waiting for process 0")
        time.sleep(_LOOK_AGAIN)


def _is_open(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1.0):
            return True
    except OSError:
        return False


def are_several() -> bool:
    """True if the run has several processes; touches no device if none has connected."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """True for the process that writes files: the first, or the only one."""
    return not are_several() or jax.process_index() == 0


def gather_texts(text: str) -> list[str]:
    """All-gather: the texts of all processes, in their order."""
    if not are_several():
        return [text]
    from jax.experimental.multihost_utils import process_allgather

    content = np.frombuffer(text.encode(), np.uint8)
    sizes = np.asarray(process_allgather(np.int32(len(content)))).reshape(-1)
    padded = np.zeros(int(sizes.max()) + 1, np.uint8)
    padded[: len(content)] = content
    contents = np.asarray(process_allgather(padded))
    return [row[:size].tobytes().decode() for row, size in zip(contents, sizes, strict=True)]


def from_first(content: bytes) -> bytes:
    """Broadcast from the first process; the other processes' argument is ignored."""
    if not are_several():
        return content
    from jax.experimental.multihost_utils import broadcast_one_to_all

    own = np.frombuffer(content if is_first() else b"", np.uint8)
    size = int(broadcast_one_to_all(np.int32(len(own))))
    sent = own if is_first() else np.zeros(size, np.uint8)
    return np.asarray(broadcast_one_to_all(sent)).tobytes() if size else b""


@contextmanager
def together() -> Iterator[None]:
    """A block that all processes leave in the same way: an error in one ends them all.

    Raises:
        UsageError: another process has raised an error.
    """
    try:
        yield
    except Exception as error:
        gather_texts(str(error) or type(error).__name__)
        raise
    for number, problem in enumerate(gather_texts("")):
        if problem:
            raise UsageError(f"process {number}: {problem}")


def check_same(own: Mapping[str, str]) -> None:
    """Check that all processes have equal entries.

    Raises:
        UsageError: names a process with an entry other than the first's; all processes raise it.
    """
    first, *others = (json.loads(text) for text in gather_texts(json.dumps(dict(own))))
    for number, other in enumerate(others, 1):
        for name in {**first, **other}:
            if other.get(name) != first.get(name):
                there = [entries.get(name, "absent") for entries in (other, first)]
                raise UsageError(f"process {number} has {name}={there[0]}, process 0 {there[1]}")


@contextmanager
def lost_together() -> Iterator[None]:
    """A block in which another process may be lost: this one then prints one line and exits with status 1.

    JAX's runtime would wait a minute or more for the lost process, and then end with a trace. An error of
    this process keeps its trace, and also ends it at once, as the others wait for it.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not are_several():
            raise
        first_line = str(error).strip().splitlines()[0]
        if _OF_OTHERS.search(first_line):
            lost = f"another process is lost ({first_line[:200]}); the same commands continue"
            print(f"jaxfed: {lost}", file=sys.stderr)
        else:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)
