"""Memory limits: bytes of a device, reports of what steps take, and clients at once that fit.

    limit = execution.limit                                        bytes of a device, or of `memory_limit`
    limit.take("a step", num_bytes)                                report a step; refuse it if it takes more
    limit.sized("a round", program)                                the same before a program's first run
    limit.fitted("a round", program_of, map_clients, number)       with as many clients at once as fit
    require(8 * k * n, "neighbors", key="num_neighbors", value=k)  refuse a setting before its array is made

Arguments, results and temporaries of programs count, as XLA reports them before they run
(`jaxfed.kernels.devices`). On a CPU the device's memory is the host's; data sets, Python and
compilation need memory in addition.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar

import jax
import numpy as np

from jaxfed.errors import BeyondMemory
from jaxfed.federation.communication import bytes_unit
from jaxfed.federation.execution.client_map import MapClients, at_once, in_chunks
from jaxfed.kernels.devices import Footprint, footprint
from jaxfed.settings import Allowed, check_value

_T = TypeVar("_T")

_ALLOWED = "bytes, as a number or as text such as '4 GiB' or '500 MB', or None: what the device has"
_KEY = "execution.memory_limit"
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_TEXT = re.compile(r"(\d+(?:\.\d+)?) *([a-z]*)", re.IGNORECASE)


def _bytes_of(given: int | str) -> int | None:
    """Return the number of bytes that a value or a text means; None if it is none from 1 to 2**63 - 1."""
    found = _TEXT.fullmatch(str(given).strip()) if type(given) in (int, str) else None
    unit = _UNITS.get(found[2].lower(), 0) if found else 0
    size = float(found[1]) * unit if found else 0.0
    return int(size) if 1 <= size < 2**63 else None


# None stays None: reading the device's memory would start JAX before its devices are set.
Limit = Annotated[
    int | str | None, Allowed(lambda given: given is None or _bytes_of(given), _ALLOWED)
]


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
    """Refuse the value of a key if its largest array would exceed the device's memory, before it is made.

    Raises:
        BeyondMemory: names the key, its value, the required bytes and the available ones.
    """
    if num_bytes > (available := available_bytes()):
        raise BeyondMemory(
            f"{what} would take {bytes_text(num_bytes)} of memory, there are {bytes_text(available)}",
            key=key,
            value=value,
            owner=owner,
        )


@dataclass(frozen=True)
class MemoryLimit:
    """The limit on a device's memory, and the receiver of reports on what steps take of it.

    Attributes:
        given: bytes, or text such as "4 GiB"; None: the device's memory.
        tell: receives a line with a step's memory before its first run.

    Raises:
        UsageError: text that is no number of bytes, or a number below 1 or beyond 63 bits.
    """

    given: int | str | None = None
    tell: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        """Reject an invalid limit."""
        check_value(_KEY, self.given, Limit)

    @cached_property
    def num_bytes(self) -> int:
        """The limit in bytes."""
        return (None if self.given is None else _bytes_of(self.given)) or available_bytes()

    def __str__(self) -> str:
        """The limit in words: `of 4.29 GB (execution.memory_limit='4 GiB')`."""
        source = "the device's" if self.given is None else f"{_KEY}={self.given!r}"
        return f"of {bytes_text(self.num_bytes)} ({source})"

    @property
    def is_watched(self) -> bool:
        """True if the memory of steps is reported or limited."""
        return self.given is not None or self.tell is not None

    def take(self, what: str, num_bytes: int) -> None:
        """Report the memory of a step, and refuse it if that is more than the limit.

        Raises:
            BeyondMemory: names the key, the step, its bytes, and the smallest sufficient limit.
        """
        if num_bytes > self.num_bytes:
            refused = f"{_KEY}={self.given!r}: {what} takes {bytes_text(num_bytes)} at least"
            if self.given is None:
                raise BeyondMemory(f"{refused}, the device has {bytes_text(self.num_bytes)}")
            raise BeyondMemory(f"{refused}; use {num_bytes} bytes or more")
        if self.tell is not None:
            self.tell(f"memory: {what} takes {bytes_text(num_bytes)} {self}")

    def take_stages(self, what: str, stages: dict[str, int]) -> None:
        """Report the memory of stages that run one after another, of which the largest counts (`take`)."""
        texts = ", ".join(f"{name} {bytes_text(size)}" for name, size in stages.items())
        self.take(f"{what} ({texts})", max(stages.values()))

    def sized(self, what: str, program: Callable[..., _T]) -> Callable[..., _T]:
        """Wrap a program under `jax.jit`: its memory is reported and checked (`take`) before its first run.

        It is compiled once all the same. Without a limit or `tell` it is returned as it is.
        """
        if not self.is_watched:
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

    def fitted(
        self,
        what: str,
        program_of: Callable[[MapClients], Callable[..., _T]],
        map_clients: MapClients,
        num_clients: Callable[..., int],
    ) -> Callable[..., _T]:
        """Return the program of a round, with fewer clients at once if the limit requires that.

        A program's temporaries grow nearly in proportion to the clients that it executes at once. XLA's
        analysis of the first program predicts how many clients fit, and its analysis of the second one
        checks that. Chunks of different sizes give the same results up to rounding. Clients one after
        another, the default on a CPU, give the same bits, since there is nothing to cut.

        Args:
            what: name of the step, for the line that reports its memory.
            program_of: makes the program, under `jax.jit`, from a `map_clients`.
            map_clients: the first one to try, `client_map` with its settings; any other is left as it is.
            num_clients: the program's arguments -> number of clients.

        Returns:
            The program. Before its first run it raises a `BeyondMemory` if one client at a time takes too
            much.

        Cost: compilation of each program that is tried; mostly one or two.
        """
        if not self.is_watched:
            return program_of(map_clients)
        chosen: list[Callable[..., _T]] = []

        def run(*arguments: Any) -> _T:
            if not chosen:
                program, said = program_of(map_clients), ""
                number = at_once(map_clients, num_clients(*arguments))
                while number > 1:
                    taken = footprint(program, *arguments)
                    if taken.total <= self.num_bytes:
                        break
                    number = self._fewer(number, taken)
                    said = f", {number} client{'s' * (number > 1)} at a time,"
                    program = program_of(in_chunks(map_clients, number))
                chosen.append(self.sized(f"{what}{said}", program))
            return chosen[0](*arguments)

        return run

    def _fewer(self, number: int, taken: Footprint) -> int:
        """Estimate the number of clients that fit from the memory `taken` by `number` of them."""
        left = self.num_bytes - taken.arguments - taken.results
        return max(1, min(number - 1, number * left // max(taken.working, 1)))
