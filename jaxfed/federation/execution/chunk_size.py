"""Chunk size of clients under a memory limit: a round's program is chosen before it runs.

A program's temporaries grow nearly in proportion to the clients that it executes at once. XLA's analysis of
the first program predicts how many clients fit, and its analysis of the second one checks that. Chunks of
different sizes give the same results up to rounding. Clients one after another, the default on a CPU, give
the same bits, since there is nothing to cut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from jaxfed.federation.execution.client_map import client_map
from jaxfed.federation.execution.settings import Execution
from jaxfed.kernels.devices.footprint import Footprint, footprint

MapClients = Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]

_T = TypeVar("_T")


def fitted(
    what: str,
    program_of: Callable[[MapClients], Callable[..., _T]],
    map_clients: MapClients,
    execution: Execution,
    num_clients: Callable[..., int],
) -> Callable[..., _T]:
    """Return the program of a round, with fewer clients at once if the memory limit requires that.

    Args:
        what: name of the step, for the line that reports its memory.
        program_of: makes the program, under `jax.jit`, from a `map_clients`.
        map_clients: the first one to try, `client_map` with its settings; any other is left as it is.
        execution: has the limit.
        num_clients: the program's arguments -> number of clients.

    Returns:
        The program. Before its first run it raises a UsageError if one client at a time takes too much.

    Cost: compilation of each program that is tried; mostly one or two.
    """
    if not execution.watches_memory:
        return program_of(map_clients)
    chosen: list[Callable[..., _T]] = []

    def run(*arguments: Any) -> _T:
        if not chosen:
            program, said = _within(program_of, map_clients, execution, num_clients, arguments)
            chosen.append(execution.sized(f"{what}{said}", program))
        return chosen[0](*arguments)

    return run


def _within(
    program_of: Callable[[MapClients], Callable[..., _T]],
    map_clients: MapClients,
    execution: Execution,
    num_clients: Callable[..., int],
    arguments: tuple[Any, ...],
) -> tuple[Callable[..., _T], str]:
    """Return the first program that fits, or the smallest one, and a note for its memory report."""
    limit, said = execution.limit.num_bytes, ""
    program = program_of(map_clients)
    number = at_once(map_clients, num_clients(*arguments))
    while number > 1:
        taken = footprint(program, *arguments)
        if taken.total <= limit:
            break
        number = _fewer(number, taken, limit)
        said = f", {number} client{'s' * (number > 1)} at a time,"
        program = program_of(in_chunks(map_clients, number))
    return program, said


def _fewer(number: int, taken: Footprint, limit: int) -> int:
    left = limit - taken.arguments - taken.results
    return max(1, min(number - 1, number * left // max(taken.working, 1)))


def at_once(map_clients: MapClients, num_clients: int) -> int:
    """Number of clients executed at a time, if that can be changed; else 1."""
    if not (isinstance(map_clients, partial) and map_clients.func is client_map):
        return 1
    strategy = map_clients.keywords.get("strategy", "vmap")
    return num_clients if strategy == "vmap" else map_clients.keywords.get("chunk_size") or 1


def in_chunks(map_clients: MapClients, number: int) -> MapClients:
    """The same `map_clients` with `number` clients at a time; "vmap" becomes "map" over chunks."""
    assert isinstance(map_clients, partial)
    keywords = {"strategy": "vmap", **map_clients.keywords}
    strategy = "map" if keywords["strategy"] == "vmap" else keywords["strategy"]
    chunk_size = number if number > 1 else None
    return partial(client_map, **{**keywords, "strategy": strategy, "chunk_size": chunk_size})
