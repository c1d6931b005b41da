"""Execution of independent clients, each on a core of one CPU whose cores are devices.

`jaxfed.federation.execution.client_map.client_map` spreads a cohort evenly, in one program: of five clients
on two cores the fifth would use one device while the other waits. Here each client is a separate call, and a
core that has finished one client takes the next. The last client, alone, uses all cores for its matrix
products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxfed.federation.execution.client_map import is_one_cpu, on_first_device
from jaxfed.host.parallel.devices import cores_are_devices


def core_each(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Lift `fn(shared, client)` to `mapped(shared, clients)`, as `client_map` does, outside of `jax.jit`.

    Args:
        fn: one client's step; jit-traceable, pytrees in and out.

    Returns:
        `mapped(shared, clients)` of arrays, with the outputs stacked on axis 0, on the first device but
        uncommitted.

    Cost: one compilation per core, of a program for one client; one copy of `shared` per core, and copies of
    the clients' parts in and out.
    """
    program, one_of, stacked = jax.jit(fn), jax.jit(_one_of), jax.jit(_stacked)

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


def _one_of(clients: Any, place: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], clients)


def _stacked(*clients: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
