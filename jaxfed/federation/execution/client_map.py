"""Execution of a cohort's clients: one after another, all at once, or spread over devices.

A client's step is written for ONE client, `fn(shared, client) -> output` without a leading axis, and
lifted here over the stacked clients. The strategy changes speed, never results beyond rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.errors import UsageError
from jaxfed.host.parallel.devices import cores_are_devices

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
    spread = PartitionSpec("clients")
    return jax.shard_map(
        mapped,
        mesh=Mesh(jax.devices(), ("clients",)) if mesh is None else mesh,
        in_specs=(PartitionSpec(), spread),
        out_specs=spread,
        # Loops that start from shared values would need a cast in every client's step.
        check_vma=False,
    )


def jitted(program: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit` of a program that executes clients; each of several processes receives all results whole."""
    if jax.process_count() == 1:
        return jax.jit(program, **options)
    everywhere = NamedSharding(Mesh(jax.devices(), ("clients",)), PartitionSpec())
    return jax.jit(program, out_shardings=everywhere, **options)


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


def core_each(fn: ClientStep) -> ClientStep:
    """Lift `fn(shared, client)` to `mapped(shared, clients)`, as `client_map` does, outside of `jax.jit`.

    For a CPU whose cores are devices. `client_map` spreads a cohort evenly in one program: of five clients on
    two cores the fifth uses one core while the other waits. Here each client is a separate call, a core that
    has finished one client takes the next, and the last one, alone, uses all cores for its matrix products.

    Cost: one compilation per core, of a program for one client; one copy of `shared` per core, and copies of
    the clients' parts in and out. Outputs are on the first device, uncommitted.
    """
    program = jax.jit(fn)
    one_of = jax.jit(lambda clients, place: jax.tree.map(lambda leaf: leaf[place], clients))
    stacked = jax.jit(lambda *each: jax.tree.map(lambda *leaves: jnp.stack(leaves), *each))

    def mapped(shared: Any, clients: Any) -> Any:
        number = len(jax.tree.leaves(clients)[0])
        devices = jax.local_devices()[:number]
        everywhere = [jax.device_put(shared, device) for device in devices]
        outputs = []
        for place in range(number):
            core = place % len(devices)
            client = jax.device_put(one_of(clients, place), devices[core])
            outputs.append(program(everywhere[core], client))
        together = stacked(*(jax.device_put(output, devices[0]) for output in outputs))
        return jax.tree.map(on_first_device, together)

    return mapped


def fastest_apart() -> Callable[..., Any] | None:
    """`core_each` if it is faster than `client_map`, by `launch.bench --kernel=learners`; else None."""
    return core_each if is_one_cpu() and cores_are_devices() else None
