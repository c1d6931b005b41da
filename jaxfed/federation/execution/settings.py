"""Execution settings: processes, devices, cache and progress reports of a computation; they change no result.

require(8 * k * n, "neighbors", key="num_neighbors", value=k)  refuse a setting before its array is made
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.errors import BeyondMemory
from jaxfed.federation.communication import bytes_unit
from jaxfed.federation.execution.client_map import is_one_cpu
from jaxfed.kernels.devices import everywhere, points_mesh, spread
from jaxfed.settings import CountOrZero, check


def available_bytes() -> int:
    """Bytes of memory of the device that JAX computes on; of the host if the device does not report it."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return int(statistics.get("bytes_limit", host_bytes()))


def host_bytes() -> int:
    """Bytes of the host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def bytes_text(num_bytes: int) -> str:
    """Format a number of bytes as `1.38 GB`: three digits, rounded up."""
    unit, scale = bytes_unit(num_bytes)
    digits = max(0, 2 - int(math.log10(max(num_bytes / scale, 1))))
    text = f"{math.ceil(num_bytes / scale * 10**digits) / 10**digits:,.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + unit


def require(num_bytes: int, what: str, *, key: str, value: Any, owner: str = "") -> None:
    """Raise a BeyondMemory if a key's value needs more than the device's memory, before an array is made."""
    if num_bytes > (available := available_bytes()):
        raise BeyondMemory(
            f"{what} would take {bytes_text(num_bytes)} of memory, there are {bytes_text(available)}",
            key=key,
            value=value,
            owner=owner,
        )


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
        workers: further processes that fit clients' estimators; 0: none. A
            script that uses some guards its entry by `if __name__ == "__main__":`, since they import it.
        progress: called from time to time with the progress so far.
        memory: cache of results for `once`, without eviction; None: no cache. Cross-validation labels the
            same points again and again, and most of the work (codes, neighbors) depends on them alone.
        num_devices: devices over which one graph's points are spread (`jaxfed.kernels.devices`); 0: all,
            unless they are one CPU's. With several processes: 0, 1 or the devices of all.
    """

    workers: CountOrZero = 0
    progress: ReportProgress | None = None
    memory: dict[Any, Any] | None = None
    num_devices: CountOrZero = 0

    def __post_init__(self) -> None:
        check(self)

    def counting(self, what: str) -> Callable[[int, int], None] | None:
        """Progress reporter for `what`, a function of (done, total); None if progress is not reported."""
        return None if self.progress is None else partial(self.progress, what)

    def once(self, compute: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return `compute(*arguments, **keywords)`, or the cached result of the same call.

        Arguments are trees of arrays, numbers and text; the result must not be written to. A look-up reads
        all arguments once (BLAKE2b, about 1 GB/s).
        """
        if self.memory is None:
            return compute(*arguments, **keywords)
        key = compute, digest_of((arguments, keywords))
        if key not in self.memory:
            self.memory[key] = compute(*arguments, **keywords)
        return self.memory[key]

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


HERE = Execution()  # in this process, without reports
