"""As many clients at once as a limit of memory leaves: the program of a round, found before it runs.

What a program needs beside its arguments and results grows with the clients that it executes at once, nearly
in proportion: XLA's analysis of the first one says how many will do, and its analysis of that one whether
they do. Results agree as those of all strategies do: one after another, and so on a CPU by default, bit
for bit, since nothing is left to cut; of different numbers at once up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from jaxfed.federation.client_map import client_map
from jaxfed.federation.execution import Execution
from jaxfed.kernels.footprint import Footprint, footprint

MapClients = Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]

_T = TypeVar("_T")


def fitted(
    what: str,
    program_of: Callable[[MapClients], Callable[..., _T]],
    map_clients: MapClients,
    execution: Execution,
    num_clients: Callable[..., int],
) -> Callable[..., _T]:
    """The program of a round, with fewer clients at once where the limit asks for that.

    Args:
        what: it does, for the line that says what memory it takes.
        program_of: makes it, under `jax.jit`, of a way to execute clients.
        map_clients: the way to begin with, `client_map` with its settings; another is left as it is.
        execution: whose limit.
        num_clients: of the program's arguments, how many there are.

    Returns:
        The program. Before it first runs it raises a UsageError if one client at a time takes too much.

    Cost: of compiling each program that is tried; mostly one or two.
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
    """The first program that fits, or the smallest that there is; and what is said of it."""
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
    """Clients that are executed at a time, as far as that can be changed; else 1."""
    if not (isinstance(map_clients, partial) and map_clients.func is client_map):
        return 1
    strategy = map_clients.keywords.get("strategy", "vmap")
    return num_clients if strategy == "vmap" else map_clients.keywords.get("chunk_size") or 1


def in_chunks(map_clients: MapClients, number: int) -> MapClients:
    """The same way, so many clients at a time: where all were at once, one chunk after another."""
    assert isinstance(map_clients, partial)
    keywords = {"strategy": "vmap", **map_clients.keywords}
    strategy = "map" if keywords["strategy"] == "vmap" else keywords["strategy"]
    chunk_size = number if number > 1 else None
    return partial(client_map, **{**keywords, "strategy": strategy, "chunk_size": chunk_size})
