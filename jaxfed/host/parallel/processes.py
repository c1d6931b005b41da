"""Runs of several processes, on one machine or many: connection and agreement.

Every process runs the same program on the same data, as `jax.distributed` requires; arrays sharded over all
devices are their joint work. The functions here let processes agree on other things: that no process has
raised an error (`together`), that all have the same inputs (`check_same`), and the first process's value
(`from_first`). In a run of one process these functions do nothing.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.host.parallel.rendezvous import meet

FROM_CLUSTER = "auto"
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

    All meet (`jaxfed.host.parallel.rendezvous`) before JAX's runtime connects them, except on a cluster.

    Args:
        coordinator: HOST:PORT of process 0, the same for all processes; "auto" takes all three from
            the cluster's environment (Slurm, Open MPI, Kubernetes and others that JAX knows).
        num_processes: their number.
        process_id: number of this one, from 0.
        tell: receives a line with the missing processes.

    Raises:
        UsageError: flags that do not fit together; no other process found.
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
        meet(host, int(port), num_processes, process_id, tell=tell)
    # JAX would handle SIGTERM itself; here it requests a stop after this round.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = None if coordinator == FROM_CLUSTER else coordinator
    try:
        jax.distributed.initialize(address, num_processes, process_id)
    except (RuntimeError, ValueError) as error:
        lacking = "no cluster is found in the environment: " * (coordinator == FROM_CLUSTER)
        raise UsageError(f"--coordinator={coordinator}: {lacking}{error}") from error


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
