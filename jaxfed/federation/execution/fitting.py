"""As many clients of a round at once as the device's memory holds.

    program = fitted("training in a round", program_of, map_clients)

An accelerator computes all clients of a round at once, which is fastest while they fit. XLA says before a
program runs what it takes: arguments, results, and temporaries, which grow nearly in proportion to the
clients at once. The analysis of the first program predicts how many fit, and that of the next one checks it.
Chunks of different sizes give the same results up to rounding. On a CPU clients run one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxfed.errors import BeyondMemory
from jaxfed.federation.execution.client_map import MapClients, client_map
from jaxfed.federation.execution.settings import available_bytes, bytes_text


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
