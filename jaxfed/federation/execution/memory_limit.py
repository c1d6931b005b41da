"""Limit on the device memory of a step, `execution.memory_limit`, and the error beyond it.

Arguments, results and temporaries of programs count, as XLA reports them before they run
(`jaxfed.kernels.devices.footprint`). On a CPU the device's memory is the host's; data sets, Python and
compilation need memory in addition.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple

import jax

from jaxfed.errors import BeyondMemory, UsageError
from jaxfed.federation.communication import bytes_unit
from jaxfed.rules import Rule

_ALLOWED = "bytes, as a number or as text such as '4 GiB' or '500 MB', or None: what the device has"

_KEY = "execution.memory_limit"
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_TEXT = re.compile(r"(\d+(?:\.\d+)?) *([a-z]*)", re.IGNORECASE)


class MemoryLimit(NamedTuple):
    """A limit in bytes, and the setting that it was read from."""

    num_bytes: int
    given: int | str | None

    def __str__(self) -> str:
        """The limit in words: `of 4.29 GB ('4 GiB')`."""
        source = "the device's" if self.given is None else f"{_KEY}={self.given!r}"
        return f"of {bytes_text(self.num_bytes)} ({source})"

    def check(self, what: str, num_bytes: int) -> None:
        """Refuse a step that needs more memory than the limit.

        Raises:
            BeyondMemory: names the key, the step, its bytes, and the smallest sufficient limit.
        """
        if num_bytes <= self.num_bytes:
            return
        asked = f"{_KEY}={self.given!r}: {what} takes {bytes_text(num_bytes)} at least"
        if self.given is None:
            raise BeyondMemory(f"{asked}, the device has {bytes_text(self.num_bytes)}")
        raise BeyondMemory(f"{asked}; use {num_bytes} bytes or more")


def memory_limit(given: int | str | None) -> MemoryLimit:
    """Parse a limit in bytes; None is the memory of the device.

    Raises:
        UsageError: text that is no number of bytes, or a number below 1 or beyond 63 bits.
    """
    if given is None:
        return MemoryLimit(available_bytes(), None)
    found = _TEXT.fullmatch(str(given).strip()) if type(given) in (int, str) else None
    unit = _UNITS.get(found[2].lower(), 0) if found else 0
    size = float(found[1]) * unit if found else 0.0
    if not 1 <= size < 2**63:
        raise UsageError(f"{_KEY}={given!r}: use {_ALLOWED}")
    return MemoryLimit(int(size), given)


def _is_allowed(given: Any) -> bool:
    if given is None:  # the device's memory; to read it would start JAX, before its devices are set
        return True
    try:
        memory_limit(given)
    except UsageError:
        return False
    return True


RULE = Rule(object, _ALLOWED, _is_allowed)


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
