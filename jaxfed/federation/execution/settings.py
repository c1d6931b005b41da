"""Execution settings: the speed, memory and progress reports of a computation.

They change results by rounding at most.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.errors import UsageError
from jaxfed.federation.execution.client_map import is_one_cpu
from jaxfed.federation.execution.memory import MemoryLimit, host_bytes
from jaxfed.kernels.devices import everywhere, points_mesh, spread


class ResultCache:
    """Cache by the function and the contents of its arguments, without eviction.

    Cross-validation labels the same points again and again with other labels and settings. The larger part of
    the work (codes, nearest neighbors) depends on the points alone, and is the same every time.

    Cost: a look-up reads all arguments once (BLAKE2b, about 1 GB/s).
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Callable[..., Any], bytes], Any] = {}

    def once(self, compute: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return `compute(*arguments, **keywords)`, or the cached result of the same call.

        Arguments are trees of arrays, numbers and text. `compute` must depend on nothing else, and
        its result must not be written to.
        """
        key = compute, digest_of((arguments, keywords))
        if key not in self._kept:
            self._kept[key] = compute(*arguments, **keywords)
        return self._kept[key]


def digest_of(arguments: Any) -> bytes:
    """BLAKE2b, 32 bytes, of a tree of arrays, numbers and text: of contents, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(arguments)
    digest = hashlib.blake2b(repr(structure).encode(), digest_size=32)
    for leaf in leaves:
        array = np.asarray(everywhere(leaf))
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        # A contiguous copy has at least one axis.
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


ReportProgress = Callable[[str, int, int], None]  # (name of the count, number done, total)


@dataclass(frozen=True)
class Execution:
    """Processes, progress and memory of long computations on the host; devices of large ones elsewhere.

    Attributes:
        workers: further processes that compute `hamming="phe"`, or fit clients' estimators; 0 = none. A
            script that uses some has to guard its entry by `if __name__ == "__main__":`, since they import
            it.
        progress: called from time to time with the progress so far.
        memory: cache of results; None: no cache.
        tell: receives a line with a step's memory before its first run.
        memory_limit: bytes of a device's memory that a step may take, or text such as "4 GiB"; None: the
            device's memory. Block sizes are reduced to keep the limit. Blocks of a system's columns, and of
            clients at once, change rounding; all others change nothing.
        num_devices: number of devices over which one graph's points are spread
        (`jaxfed.kernels.devices`);
            0: all, unless they are one CPU's. With several processes: 0, 1 or the devices of all.
        folder: on a disk, for clients' states that exceed the memory; None: there is none.

    Raises:
        UsageError: an invalid number of processes or devices, an invalid limit; when the mesh is used,
            devices that do not exist.
    """

    workers: int = 0
    progress: ReportProgress | None = None
    memory: ResultCache | None = None
    num_devices: int = 0
    tell: Callable[[str], None] | None = None
    memory_limit: int | str | None = None
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        """Reject invalid settings, with one line that names the first."""
        for name, least in (("workers", "none"), ("num_devices", "all")):
            number = getattr(self, name)
            if not isinstance(number, int | np.integer) or number < 0:
                raise UsageError(f"execution.{name}={number!r}: use integers from 0 ({least}) on")
        self.limit  # noqa: B018 - an invalid one raises

    def counting(self, what: str) -> Callable[[int, int], None] | None:
        """Progress reporter for `what`, a function of (done, total); None if progress is not reported."""
        progress = self.progress
        if progress is None:
            return None
        return lambda done, total: progress(what, done, total)

    @cached_property
    def limit(self) -> MemoryLimit:
        """The limit on a device's memory, which reports and refuses steps, and cuts them into chunks."""
        return MemoryLimit(self.memory_limit, self.tell)

    @property
    def rows_limit(self) -> int:
        """Bytes of the host's memory for the rows of clients' states: the limit, or all that it has."""
        return host_bytes() if self.memory_limit is None else self.limit.num_bytes

    @property
    def mesh(self) -> Mesh | None:
        """The devices over which one graph's points are spread; None: they are on one device."""
        if self.num_devices == 1 or (not self.num_devices and is_one_cpu()):
            return None
        mesh = points_mesh(self.num_devices)
        return mesh if mesh.size > 1 else None

    def spread(self, array: np.ndarray | jax.Array, *, fill: float = 0) -> jax.Array:
        """Spread rows [n, ...] over the mesh, padded to a multiple of its devices; as is without a mesh."""
        mesh = self.mesh
        return jnp.asarray(array) if mesh is None else spread(array, mesh, fill=fill)

    def once(self, compute: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return `compute(*arguments, **keywords)`, from the cache if it is there."""
        if self.memory is None:
            return compute(*arguments, **keywords)
        return self.memory.once(compute, *arguments, **keywords)


HERE = Execution()  # in this process, without reports
