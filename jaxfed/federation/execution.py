"""How a computation is carried out: what changes its speed, its memory and what is seen of it.

The result changes by rounding at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.errors import UsageError
from jaxfed.federation.client_map import is_one_cpu
from jaxfed.federation.memory import Memory
from jaxfed.federation.memory_limit import MemoryLimit, bytes_text, memory_limit
from jaxfed.kernels.footprint import footprint
from jaxfed.kernels.spread import points_mesh, spread

_T = TypeVar("_T")
Progress = Callable[[str, int, int], None]  # (what is counted, how many are done, of how many)


@dataclass(frozen=True)
class Execution:
    """Processes, progress and memory of long computations on the host; devices of large ones elsewhere.

    Attributes:
        workers: processes that `hamming="phe"` computes in, or clients' estimators are fitted in, beside this
            one; 0 = none. A script that asks for some has to guard its entry by
            `if __name__ == "__main__":`, for they import it.
        progress: told now and then how much is done.
        memory: keeps what will be asked for again; None: nothing is kept.
        tell: hears, before a step first runs, what memory it takes.
        memory_limit: bytes of a device's memory that a step may take, or text such as "4 GiB"; None: what the
            device has. Blocks are cut so that it is kept, where a smaller one does; of a system's columns and
            of clients at once they change rounding, all others nothing.
        num_devices: that one graph's points are spread over (`jaxfed.kernels.spread`); 0: all, unless they
            are one CPU's. With several processes: 0, 1 or the devices of all.

    Raises:
        UsageError: a number of processes or devices that is none, a limit that is none; when the mesh is
            asked for, devices that are not there.
    """

    workers: int = 0
    progress: Progress | None = None
    memory: Memory | None = None
    num_devices: int = 0
    tell: Callable[[str], None] | None = None
    memory_limit: int | str | None = None

    def __post_init__(self) -> None:
        """Reject what has no meaning, with one line that names it."""
        for name, least in (("workers", "none"), ("num_devices", "all")):
            number = getattr(self, name)
            if not isinstance(number, int | np.integer) or number < 0:
                raise UsageError(
                    f"execution.{name}={number!r}: allowed are integers, 0 ({least}) and more"
                )
        if self.memory_limit is not None:
            memory_limit(self.memory_limit)

    def counting(self, what: str) -> Callable[[int, int], None] | None:
        """Progress of one thing: a function of (done, total), or None where nobody listens."""
        progress = self.progress
        if progress is None:
            return None
        return lambda done, total: progress(what, done, total)

    @cached_property
    def limit(self) -> MemoryLimit:
        """Of a device's memory."""
        return memory_limit(self.memory_limit)

    @property
    def watches_memory(self) -> bool:
        """Whether anybody asks what steps take."""
        return self.memory_limit is not None or self.tell is not None

    def take(self, what: str, num_bytes: int) -> None:
        """Say that a step takes so much; refuse it where that is more than the limit.

        Raises:
            UsageError: see `MemoryLimit.check`.
        """
        self.limit.check(what, num_bytes)
        if self.tell is not None:
            self.tell(f"memory: {what} takes {bytes_text(num_bytes)} {self.limit}")

    def sized(self, what: str, program: Callable[..., _T]) -> Callable[..., _T]:
        """A program under `jax.jit` that is said and held to the limit (`take`) before it first runs.

        It is compiled once all the same. Where nobody asks it is as it was.
        """
        if not self.watches_memory:
            return program
        known: set[Any] = set()

        def run(*arguments: Any) -> _T:
            leaves, structure = jax.tree.flatten(arguments)
            shapes = (
                structure,
                *((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves),
            )
            if shapes not in known:
                self.take(what, footprint(program, *arguments).total)
                known.add(shapes)
            return program(*arguments)

        return run

    @property
    def mesh(self) -> Mesh | None:
        """What one graph's points are spread over; None: they are on one device."""
        if self.num_devices == 1 or (not self.num_devices and is_one_cpu()):
            return None
        mesh = points_mesh(self.num_devices)
        return mesh if mesh.size > 1 else None

    def spread(self, array: np.ndarray | jax.Array, *, fill: float = 0) -> jax.Array:
        """Rows [n, ...] over the mesh, filled up to a multiple of its devices; or as they are."""
        mesh = self.mesh
        return jnp.asarray(array) if mesh is None else spread(array, mesh, fill=fill)

    def once(self, compute: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """`compute(*arguments, **keywords)`, out of the memory where there is one that has it."""
        if self.memory is None:
            return compute(*arguments, **keywords)
        return self.memory.once(compute, *arguments, **keywords)


HERE = Execution()  # in this process, silently
