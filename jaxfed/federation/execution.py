"""Execution of clients and of the host's computations; it changes speed, never results beyond rounding.

    ClientExecution(map_clients=partial(client_map, strategy="vmap"))
    require(8 * k * n, "neighbors", key="num_neighbors", value=k)  # refuse a setting before its array is made
    program = fitted("training in a round", program_of, map_clients)

A client's step is written for ONE client, `fn(shared, client) -> output` without a leading axis, and
`client_map` lifts it over stacked clients: one after another, all at once, or spread over devices.

An accelerator computes all clients of a round at once, which is fastest while they fit. XLA says before a
program runs what it takes: arguments, results, and temporaries, which grow nearly in proportion to the
clients at once. The analysis of the first program predicts how many fit, and that of the next one checks it.
On a CPU clients run one after another.
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
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.errors import BeyondMemory, UsageError
from jaxfed.federation.communication import bytes_unit
from jaxfed.host.parallel.devices import cores_are_devices
from jaxfed.kernels.devices import everywhere, points_mesh, spread
from jaxfed.settings import Count, CountOrZero, Described, check

ClientStep = Callable[[Any, Any], Any]
MapClients = Callable[[ClientStep], ClientStep]
STRATEGIES = ("vmap", "map", "shard_map")


def fastest_strategy() -> str:
    """The fastest strategy for the present devices, as measured by `launch.bench --kernel=round`.

    On a CPU whose cores are one device, a loop over clients: all at once takes 1.4 to 2.5 times as long. If
    each core is a device, one client per core: small networks take 0.5 to 0.75 of the loop's time. Elsewhere
    all at once, spread over the devices if there are several; also over the CPUs of several processes.
    """
    if is_one_cpu() and not cores_are_devices():
        return "map"
    return "shard_map" if jax.device_count() > 1 else "vmap"


def is_one_cpu() -> bool:
    """True if all devices belong to one CPU; a single large computation uses all its cores in any case."""
    return jax.default_backend() == "cpu" and jax.process_count() == 1


def even_devices(num_clients: int) -> int:
    """Number of devices to spread the clients over: all, or on one CPU the most that divide `num_clients`.

    With a remainder, all other devices would wait for the last clients.
    """
    count = jax.device_count()
    if not is_one_cpu():
        return count
    return max(n for n in range(1, count + 1) if num_clients % n == 0)


def client_map(
    fn: ClientStep,
    *,
    strategy: str = "vmap",
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> ClientStep:
    """Lift `fn(shared, client)` to `mapped(shared, clients)` over clients stacked on axis 0.

    Args:
        fn: one client's step; jit-traceable, pytrees in and out. Every client receives the same `shared`.
        strategy: "vmap", all clients at once; "map", one after another, or `chunk_size` at a time;
            "shard_map", clients spread over the devices of `mesh`, one after another (or in chunks)
            on each. Outputs stay there; with several processes only `jitted` gives them to all.
        chunk_size: clients at a time under "map" and "shard_map"; None is one. It bounds memory.
        mesh: for "shard_map", a mesh with an axis named "clients"; None is all devices. The number of
            clients must be a multiple of the number of devices: pad with empty clients.
    """
    if strategy == "vmap":
        return jax.vmap(fn, in_axes=(None, 0))
    if strategy not in STRATEGIES:
        allowed = ", ".join(map(repr, STRATEGIES))
        raise UsageError(f"execution.strategy={strategy!r}: choose one of {allowed}")

    def mapped(shared: Any, clients: Any) -> Any:
        return jax.lax.map(lambda client: fn(shared, client), clients, batch_size=chunk_size)

    if strategy == "map":
        return mapped
    along = PartitionSpec("clients")
    return jax.shard_map(
        mapped,
        mesh=Mesh(jax.devices(), ("clients",)) if mesh is None else mesh,
        in_specs=(PartitionSpec(), along),
        out_specs=along,
        # Loops that start from shared values would need a cast in every client's step.
        check_vma=False,
    )


def jitted(program: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit` of a program that executes clients; each of several processes receives all results whole."""
    if jax.process_count() == 1:
        return jax.jit(program, **options)
    whole = NamedSharding(Mesh(jax.devices(), ("clients",)), PartitionSpec())
    return jax.jit(program, out_shardings=whole, **options)


def on_first_device(leaf: Any) -> Any:
    """Return the array on the first device, uncommitted: any program may use it, on any devices.

    Spread over the cores of one CPU it would have all cores repeat the computations on it.
    """
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = on_first_device(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf)) if isinstance(leaf, jax.Array) else leaf


def size_buckets(sizes: Any, *, smallest: int = 1) -> list[tuple[np.ndarray, int]]:
    """Group clients of these sizes, int [K], to compile few shapes and compute little padding.

    Returns (rows, capacity) pairs: the clients of a bucket, and the power of two, `smallest` or more, that
    all of them fit in. Empty clients are in no bucket.
    """
    fits = [max(smallest, 1 << (int(size) - 1).bit_length()) if size else 0 for size in sizes]
    return [(np.flatnonzero(np.equal(fits, most)), most) for most in sorted({*fits} - {0})]


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
    what: str, program: Any, program_of: Callable[..., Any], map_clients: Any, arguments: Any
) -> Callable[..., Any]:
    options = {"strategy": "vmap", **map_clients.keywords}
    number = len(arguments[1].client_id)
    if options["strategy"] != "vmap":
        number = options.get("chunk_size") or 1
    available = available_bytes()
    while analysis := program.lower(*arguments).compile().memory_analysis():
        fixed = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
        fixed -= analysis.alias_size_in_bytes
        working = analysis.temp_size_in_bytes
        if fixed + working <= available:
            break
        if number == 1:
            takes, has = bytes_text(fixed + working), bytes_text(available)
            wrong = f"{what} takes {takes} at least for one client at a time, the device has {has}"
            raise BeyondMemory(f"{wrong}; use smaller batches or a smaller network")
        number = max(1, min(number - 1, number * (available - fixed) // max(working, 1)))
        strategy = "map" if options["strategy"] == "vmap" else options["strategy"]
        changed = options | {"strategy": strategy, "chunk_size": number}
        program = program_of(partial(client_map, **changed))
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
        map_labeling: execution of clients while they are labeled; by default `map_clients`.
        host: processes and devices of the host's computations.
    """

    map_clients: _Map = _FASTEST
    clients_multiple: Count = 1
    map_labeling: _Map = _AS_CLIENTS
    host: Execution = HERE

    def __post_init__(self) -> None:
        """Check the types, and choose the fastest execution for the present devices if none is given."""
        check(self)
        if self.map_clients is None:
            # It is not known here whether a round's clients share a CPU's cores evenly.
            strategy = "map" if is_one_cpu() else fastest_strategy()
            object.__setattr__(self, "map_clients", partial(client_map, strategy=strategy))
            if strategy == "shard_map":
                object.__setattr__(self, "clients_multiple", jax.device_count())
        if self.map_labeling is None:
            object.__setattr__(self, "map_labeling", self.map_clients)
