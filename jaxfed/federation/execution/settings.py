"""Execution of computations: processes, devices, memory and progress reports; none changes a result.

require(8 * k * n, "neighbors", key="num_neighbors", value=k)  refuse a setting before its array is made
program = fitted("training in a round", program_of, map_clients)
ClientExecution(map_clients=partial(client_map, strategy="vmap"))

An accelerator computes all clients of a round at once, which is fastest while they fit. XLA says before a
program runs what it takes: arguments, results, and temporaries, which grow nearly in proportion to the
clients at once. The analysis of the first program predicts how many fit, and that of the next one checks it.
Chunks of different sizes give the same results up to rounding. On a CPU clients run one after another.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.errors import BeyondMemory
from jaxfed.federation.communication import bytes_unit
from jaxfed.federation.execution.client_map import (
    MapClients,
    client_map,
    fastest_apart,
    fastest_strategy,
    is_one_cpu,
)
from jaxfed.kernels.devices import everywhere, points_mesh, spread
from jaxfed.settings import Count, CountOrZero, Described, check


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


def fitted(
    what: str, program_of: Callable[[MapClients], Any], map_clients: MapClients
) -> Callable[..., Any]:
    """Return the program of a step, with fewer clients at once if the device's memory requires that.

    Args:
        what: name of the step, for the error.
        program_of: makes the program, under `jax.jit`, from a `map_clients`; its second argument is a cohort.
        map_clients: `client_map` with its settings; anything else is left as it is.

    Raises:
        BeyondMemory: in the first call, if one client alone takes more.

    Cost: compilation, which the first run reuses.
    """
    program = program_of(map_clients)
    if not (isinstance(map_clients, partial) and map_clients.func is client_map):
        return program
    chosen: list[Callable[..., Any]] = []

    def run(*arguments: Any) -> Any:
        if not chosen:  # asked here, since it starts JAX
            is_cpu = jax.default_backend() == "cpu"
            chosen.append(
                program if is_cpu else _fitting(what, program, program_of, map_clients, arguments)
            )
        return chosen[0](*arguments)

    return run


def _fitting(
    what: str,
    program: Any,
    program_of: Callable[[MapClients], Any],
    map_clients: Any,
    arguments: Any,
) -> Callable[..., Any]:
    given = {"strategy": "vmap", **map_clients.keywords}
    number = len(arguments[1].client_id)
    if given["strategy"] != "vmap":
        number = given.get("chunk_size") or 1
    available = available_bytes()
    while analysis := program.lower(*arguments).compile().memory_analysis():
        fixed = (
            analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
            - analysis.alias_size_in_bytes
        )
        working = analysis.temp_size_in_bytes
        if fixed + working <= available:
            break
        if number == 1:
            takes, has = bytes_text(fixed + working), bytes_text(available)
            wrong = f"{what} takes {takes} at least for one client at a time, the device has {has}"
            raise BeyondMemory(f"{wrong}; use smaller batches or a smaller network")
        number = max(1, min(number - 1, number * (available - fixed) // max(working, 1)))
        strategy = "map" if given["strategy"] == "vmap" else given["strategy"]
        program = program_of(
            partial(client_map, **given | {"strategy": strategy, "chunk_size": number})
        )
    return program  # a backend without an analysis tries


_FASTEST: Any = None
_AS_CLIENTS: Any = None  # computed from `map_clients`
_Map = Annotated[MapClients, Described("partial(client_map, strategy='vmap')")]


@dataclass(frozen=True)
class ClientExecution:
    """Execution of a round's clients on devices, and of the rest of a round on the host.

    Attributes:
        map_clients: execution of clients within a round; by default the fastest for the present devices.
        clients_multiple: the number of clients is padded to a multiple of this (devices).
        map_apart: execution of clients that are independent of each other within a round (FedCT's networks),
            outside of `jax.jit`; None: by `map_clients`. By default `core_each` if one CPU's cores are
            devices and `map_clients` is not given.
        map_labeling: execution of clients while they are labeled; by default `map_clients`.
        host: processes and devices of the host's computations.
    """

    map_clients: _Map = _FASTEST
    clients_multiple: Count = 1
    map_apart: _Map | None = None
    map_labeling: _Map = _AS_CLIENTS
    host: Execution = HERE

    def __post_init__(self) -> None:
        """Check the types, and choose the fastest execution for the present devices if none is given."""
        check(self)
        if self.map_clients is None:
            # It is not known here whether a round's clients share a CPU's cores evenly.
            strategy = "map" if is_one_cpu() else fastest_strategy()
            object.__setattr__(self, "map_clients", partial(client_map, strategy=strategy))
            if self.map_apart is None:
                object.__setattr__(self, "map_apart", fastest_apart())
            if strategy == "shard_map":
                object.__setattr__(self, "clients_multiple", jax.device_count())
        if self.map_labeling is None:
            object.__setattr__(self, "map_labeling", self.map_clients)
