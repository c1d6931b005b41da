"""Several processes of one run, on one machine or many: how they find each other, and what they tell.

Every process runs the same program on the same data, as `jax.distributed` wants it; arrays that are spread
over all devices are their common work. What they have to agree on beside arrays goes through here: that
nobody has met a mistake (`together`), that all were given the same (`check_same`), what the first one has
(`from_first`). A run of one process calls the same functions, which then do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np

from jaxfed.errors import UsageError

FROM_CLUSTER = "auto"


def connect(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Join the others of this run, before anything touches a device; nothing is done without a coordinator.

    Args:
        coordinator: HOST:PORT where process 0 can be reached, the same at all; "auto" takes all three from
            the cluster's environment (Slurm, Open MPI, Kubernetes and others that JAX knows).
        num_processes: how many there are.
        process_id: which this one is, from 0 on.

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
        if not re.fullmatch(r"\S+:\d{1,5}", coordinator):
            raise UsageError(
                f"--coordinator={coordinator}: allowed are HOST:PORT and '{FROM_CLUSTER}', by the cluster"
            )
        if num_processes is None or num_processes < 1:
            raise UsageError(f"--num_processes={num_processes}: allowed are integers from 1 on")
        if process_id is None or not 0 <= process_id < num_processes:
            raise UsageError(f"--process_id={process_id}: allowed are 0 to {num_processes - 1}")
    # JAX would take SIGTERM for itself, which asks a run to stop after this round.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = None if coordinator == FROM_CLUSTER else coordinator
    try:
        jax.distributed.initialize(address, num_processes, process_id)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"--coordinator={coordinator}: {error}") from error


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


def check_same(what: str, text: str) -> None:
    """Compare what every process has.

    Raises:
        UsageError: one has another than the first; all processes raise it.
    """
    first, *others = told(text)
    for number, other in enumerate(others, 1):
        if other != first:
            raise UsageError(f"process {number} has {what} other than process 0's")
