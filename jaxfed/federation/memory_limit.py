"""How much of a device's memory may be taken: `execution.memory_limit`, and what does not fit.

What counts is what programs are given, make and need on the way, as XLA says before they run
(`jaxfed.kernels.footprint`). On a CPU the device's memory is the host's, of which data sets, Python and
compilation take their own share beside that.
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
    """So many bytes, and what was given for them."""

    num_bytes: int
    given: int | str | None

    def __str__(self) -> str:
        """`of 4.29 GB ('4 GiB')`: what a step's memory is part of."""
        source = "the device's" if self.given is None else f"{_KEY}={self.given!r}"
        return f"of {bytes_text(self.num_bytes)} ({source})"

    def check(self, what: str, num_bytes: int) -> None:
        """Refuse what takes more, and cannot do with less.

        Raises:
            BeyondMemory: names the key, what takes how much, and the smallest limit that would be kept.
        """
        if num_bytes <= self.num_bytes:
            return
        asked = f"{_KEY}={self.given!r}: {what} takes {bytes_text(num_bytes)} at least"
        if self.given is None:
            raise BeyondMemory(f"{asked}, the device has {bytes_text(self.num_bytes)}")
        raise BeyondMemory(f"{asked}; allowed are {num_bytes} bytes and more")


def memory_limit(given: int | str | None) -> MemoryLimit:
    """What is given as a number of bytes; of None what the device has.

    Raises:
        UsageError: text that is no number of bytes, or one below 1 or beyond 63 bits.
    """
    if given is None:
        return MemoryLimit(available_bytes(), None)
    found = _TEXT.fullmatch(str(given).strip()) if type(given) in (int, str) else None
    unit = _UNITS.get(found[2].lower(), 0) if found else 0
    size = float(found[1]) * unit if found else 0.0
    if not 1 <= size < 2**63:
        raise UsageError(f"{_KEY}={given!r}: allowed are {_ALLOWED}")
    return MemoryLimit(int(size), given)


def _is_allowed(given: Any) -> bool:
    if given is None:  # whatever the device has; to ask would start JAX, before its devices are set
        return True
    try:
        memory_limit(given)
    except UsageError:
        return False
    return True


RULE = Rule(object, _ALLOWED, _is_allowed)


def available_bytes() -> int:
    """Memory of the device that JAX computes on; of the host where that does not tell."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(statistics.get("bytes_limit", host))


def bytes_text(num_bytes: int) -> str:
    """`1.38 GB`: three digits, never less than there are."""
    unit, scale = bytes_unit(num_bytes)
    digits = max(0, 2 - int(math.log10(max(num_bytes / scale, 1))))
    text = f"{math.ceil(num_bytes / scale * 10**digits) / 10**digits:,.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + unit
