"""Several processes of one run, on one machine or many: how they find each other, and what they tell.

Every process runs the same program on the same data, as `jax.distributed` wants it; arrays that are spread
over all devices are their common work. What they have to agree on beside arrays goes through here: that
nobody has met a mistake (`together`), that all were given the same (`check_same`), what the first one has
(`from_first`). A run of one process calls the same functions, which then do nothing.
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
from jaxfed.host.rendezvous import meet

FROM_CLUSTER = "auto"
# What collectives and their service say when somebody is gone.
_OF_OTHERS = re.compile(r"gloo|nccl|connection|coordination|heartbeat|unavailable|deadline", re.I)


def connect(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    *,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Join the others of this run, before anything touches a device; nothing is done without a coordinator.

    All meet (`jaxfed.host.rendezvous`) before JAX's runtime connects them, but for those of a cluster.

    Args:
        coordinator: HOST:PORT where process 0 can be reached, the same at all; "auto" takes all three from
            the cluster's environment (Slurm, Open MPI, Kubernetes and others that JAX knows).
        num_processes: how many there are.
        process_id: which this one is, from 0 on.
        tell: hears who is waited for.

    Raises:
        UsageError: flags that do not fit together; nobody to be found.
    """
    numbers = {"--num_processes": num_processes, "--process_id": process_id}
    given = [flag for flag, number in numbers.items() if number is not None]
    if coordinator is None or coordinator == FROM_CLUSTER:
        if given:
            raise UsageError(
                f"{given[0]}={numbers[given[0]]}: goes with --coordinator=HOST:PORT alone"
            )
        if coordinator is None:
            return
    else:
        host, _, port = coordinator.rpartition(":")
        if not re.fullmatch(r"\S+:[0-9]{1,5}", coordinator) or not 0 < int(port) < 2**16:
            raise UsageError(
                f"--coordinator={coordinator}: allowed are HOST:PORT and '{FROM_CLUSTER}', by the cluster"
            )
        for flag, number in numbers.items():
            if number is None:
                raise UsageError(f"{flag} is missing, which goes with --coordinator")
        assert num_processes is not None
        assert process_id is not None
        if num_processes < 1:
            raise UsageError(f"--num_processes={num_processes}: allowed are integers from 1 on")
        if not 0 <= process_id < num_processes:
            raise UsageError(f"--process_id={process_id}: allowed are 0 to {num_processes - 1}")
        meet(host, int(port), num_processes, process_id, tell=tell)
    # JAX would take SIGTERM for itself, which asks a run to stop after this round.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = None if coordinator == FROM_CLUSTER else coordinator
    try:
        jax.distributed.initialize(address, num_processes, process_id)
    except (RuntimeError, ValueError) as error:
        lacking = "no cluster is found in the environment: " * (coordinator == FROM_CLUSTER)
        raise UsageError(f"--coordinator={coordinator}: {lacking}{error}") from error


def are_several() -> bool:
    """Whether there are others; touches no device where nobody has joined."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that writes: the first, or the only one."""
    return not are_several() or jax.process_index() == 0


def told(text: str) -> list[str]:
    """What every process says, in their order."""
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
    """What the first process has; what the others give does not matter."""
    if not are_several():
        return content
    from jax.experimental.multihost_utils import broadcast_one_to_all

    own = np.frombuffer(content if is_first() else b"", np.uint8)
    size = int(broadcast_one_to_all(np.int32(len(own))))
    sent = own if is_first() else np.zeros(size, np.uint8)
    return np.asarray(broadcast_one_to_all(sent)).tobytes() if size else b""


@contextmanager
def together() -> Iterator[None]:
    """A block that all processes leave alike: what one of them raises ends them all.

    Raises:
        UsageError: another process has raised something.
    """
    try:
        yield
    except Exception as error:
        told(str(error) or type(error).__name__)
        raise
    for number, problem in enumerate(told("")):
        if problem:
            raise UsageError(f"process {number}: {problem}")


def check_same(own: Mapping[str, str]) -> None:
    """Compare what every process has, entry by entry.

    Raises:
        UsageError: one has another than the first, which is named; all processes raise it.
    """
    first, *others = (json.loads(text) for text in told(json.dumps(dict(own))))
    for number, other in enumerate(others, 1):
        for name in {**first, **other}:
            if other.get(name) != first.get(name):
                there = [entries.get(name, "absent") for entries in (other, first)]
                raise UsageError(f"process {number} has {name}={there[0]}, process 0 {there[1]}")


@contextmanager
def lost_together() -> Iterator[None]:
    """A block in which another process may be lost: this one then ends at once, exit status 1, in one line.

    JAX's runtime would wait for the lost one, a minute or more, and end the process with a trace. An error of
    this process's own keeps its trace, and ends it as soon, for the others wait for it.
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
