"""Runs of several processes, on one machine or many: connection and agreement.

Every process runs the same program on the same data, as `jax.distributed` requires; arrays sharded over all
devices are their joint work. The functions here let processes agree on other things: that no process has
raised an error (`together`), and that all have the same inputs (`check_same`). In a run of one process they
do nothing. JAX ends processes that wait for a lost one, after a minute or more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax
import numpy as np

from jaxfed.errors import UsageError


def connect(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Connect to the run's other processes, before any device is used; a no-op without a coordinator.

    JAX waits five minutes for missing processes. `coordinator` is HOST:PORT of process 0, the same for all
    processes; "auto" takes all three values from the cluster's environment (Slurm, Open MPI, Kubernetes and
    others that JAX knows).

    Raises:
        UsageError: arguments that do not fit together; as JAX refuses them.
    """
    if coordinator is None:
        for flag, number in (("num_processes", num_processes), ("process_id", process_id)):
            if number is not None:
                raise UsageError(f"--{flag}={number}: needs --coordinator=HOST:PORT")
        return
    # JAX would handle SIGTERM itself; here it requests a stop after this round.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = None if coordinator == "auto" else coordinator
    try:
        jax.distributed.initialize(address, num_processes, process_id)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"--coordinator={coordinator}: {error}") from error


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


@contextmanager
def together() -> Iterator[None]:
    """A block that all processes leave in the same way: an error in one ends them all."""
    try:
        yield
    except Exception as error:
        gather_texts(str(error) or type(error).__name__)
        raise
    for number, problem in enumerate(gather_texts("")):
        if problem:
            raise UsageError(f"process {number}: {problem}")


def check_same(entries_here: Mapping[str, str]) -> None:
    """Check that all processes have equal entries; the error, of all, names one that differs."""
    first, *others = (json.loads(text) for text in gather_texts(json.dumps(dict(entries_here))))
    for number, other in enumerate(others, 1):
        for name in {**first, **other}:
            if other.get(name) != first.get(name):
                values = [entries.get(name, "absent") for entries in (other, first)]
                raise UsageError(f"process {number} has {name}={values[0]}, process 0 {values[1]}")
