"""Execution settings: the speed, memory and progress reports of a computation.

    execution.take("a step", num_bytes)                            report a step; refuse it above the limit
    execution.sized("a round", program)                            the same before a program's first run
    execution.fitted("a round", program_of, map_clients, number)   with as many clients at once as fit
    require(8 * k * n, "neighbors", key="num_neighbors", value=k)  refuse a setting before its array is made

Settings change results by rounding at most. Arguments, results and temporaries of programs count as memory,
as XLA reports them before they run (`jaxfed.kernels.devices`). On a CPU the device's memory is the
host's; data sets, Python and compilation need memory in addition.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.errors import BeyondMemory, UsageError
from jaxfed.federation.communication import bytes_unit
from jaxfed.federation.execution.client_map import MapClients, at_once, in_chunks, is_one_cpu
from jaxfed.kernels.devices import everywhere, footprint, points_mesh, spread
from jaxfed.settings import Allowed, check_value

_T = TypeVar("_T")

_ALLOWED = "bytes, as a number or as text such as '4 GiB' or '500 MB', or None: what the device has"
_KEY = "execution.memory_limit"
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_TEXT = re.compile(r"(\d+(?:\.\d+)?) *([a-z]*)", re.IGNORECASE)


def _bytes_of(given: int | str | None) -> int | None:
    """Bytes that a value or a text means; None if that is no number from 1 to 2**63 - 1."""
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
        workers: further processes that compute `hamming="phe"`, or fit clients' estimators; 0: none. A
            script that uses some guards its entry by `if __name__ == "__main__":`, since they import it.
        progress: called from time to time with the progress so far.
        memory: cache of results for `once`, without eviction; None: no cache. Cross-validation labels the
            same points again and again, and most of the work (codes, neighbors) depends on them alone.
        num_devices: devices over which one graph's points are spread (`jaxfed.kernels.devices`); 0: all,
            unless they are one CPU's. With several processes: 0, 1 or the devices of all.
        tell: receives a line with a step's memory before its first run.
        memory_limit: bytes of a device's memory that a step may take, or text such as "4 GiB"; None: the
            device's memory. Block sizes are reduced to keep the limit. Blocks of a system's columns, and of
            clients at once, change rounding; all others change nothing.
        folder: on a disk, for clients' states that exceed the memory; None: there is none.
    """

    workers: int = 0
    progress: ReportProgress | None = None
    memory: dict[Any, Any] | None = None
    num_devices: int = 0
    tell: Callable[[str], None] | None = None
    memory_limit: int | str | None = None
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        """Check the numbers of processes and devices, and the limit."""
        for name, least in (("workers", "none"), ("num_devices", "all")):
            number = getattr(self, name)
            if not isinstance(number, int | np.integer) or number < 0:
                raise UsageError(f"execution.{name}={number!r}: use integers from 0 ({least}) on")
        check_value(_KEY, self.memory_limit, Limit)

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

    @cached_property
    def device_bytes(self) -> int:
        """The limit on a device's memory in bytes; without one, its memory."""
        return _bytes_of(self.memory_limit) or available_bytes()

    @property
    def rows_limit(self) -> int:
        """Bytes of the host's memory for the rows of clients' states: the limit, or all that it has."""
        return host_bytes() if self.memory_limit is None else self.device_bytes

    @property
    def is_watched(self) -> bool:
        """True if the memory of steps is reported or limited."""
        return self.memory_limit is not None or self.tell is not None

    def take(self, what: str, num_bytes: int) -> None:
        """Report the memory of a step; raise a BeyondMemory if that is more than the limit."""
        given, limit = self.memory_limit, bytes_text(self.device_bytes)
        if num_bytes > self.device_bytes:
            refused = f"{_KEY}={given!r}: {what} takes {bytes_text(num_bytes)} at least"
            if given is None:
                raise BeyondMemory(f"{refused}, the device has {limit}")
            raise BeyondMemory(f"{refused}; use {num_bytes} bytes or more")
        if self.tell is not None:
            source = "the device's" if given is None else f"{_KEY}={given!r}"
            self.tell(f"memory: {what} takes {bytes_text(num_bytes)} of {limit} ({source})")

    def take_stages(self, what: str, stages: dict[str, int]) -> None:
        """Report the memory of stages that run one after another, of which the largest counts (`take`)."""
        texts = ", ".join(f"{name} {bytes_text(size)}" for name, size in stages.items())
        self.take(f"{what} ({texts})", max(stages.values()))

    def sized(self, what: str, program: Callable[..., _T]) -> Callable[..., _T]:
        """Return a jitted program whose memory is reported and checked (`take`) before its first run."""
        if not self.is_watched:
            return program
        known: set[Any] = set()

        def run(*arguments: Any) -> _T:
            leaves, structure = jax.tree.flatten(arguments)
            forms = ((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
            shapes = (structure, *forms)
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
        """Return the `sized` program of a round, with fewer clients at once if the limit requires that.

        A program's temporaries grow nearly in proportion to the clients that it executes at once: XLA's
        analysis of the first program predicts how many fit, and that of the next one checks it. Chunks of
        different sizes give the same results up to rounding.

        Args:
            what: name of the step, for the line that reports its memory.
            program_of: makes the program, under `jax.jit`, from a `map_clients`.
            map_clients: the first one to try, `client_map` with its settings; any other is left as it is.
            num_clients: the program's arguments -> number of clients.
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
                    if taken.total <= self.device_bytes:
                        break
                    left = self.device_bytes - taken.arguments - taken.results
                    number = max(1, min(number - 1, number * left // max(taken.working, 1)))
                    said = f", {number} client{'s' * (number > 1)} at a time,"
                    program = program_of(in_chunks(map_clients, number))
                chosen.append(self.sized(f"{what}{said}", program))
            return chosen[0](*arguments)

        return run


HERE = Execution()  # in this process, without reports
