"""Seconds of a client's step, which come with each reply.

    method     making the method's client side from config and folder; 0 if the worker has it already
    step       the step itself, with tracing and compilation
    compile    of `method` and `step`: compiling programs, or reading compiled ones from disk

Nothing else about a client's machine leaves it. Tracing, and starting a device, are in `method` and `step`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxfed.flower.messages.records import BadMessage, Record, Value

METHOD, STEP, COMPILE = "method", "step", "compile"
TRANSPORT = "transport"  # all else until the reply is at the server: Flower's polls and processes
PARTS = (METHOD, STEP)

Seconds = Mapping[str, float]


def from_record(content: Mapping[str, Value]) -> Seconds:
    """Read a client's seconds.

    Raises:
        BadMessage: an unknown name, or no finite number from 0 on.
    """
    found: dict[str, float] = {}
    for name, value in content.items():
        if name not in (*PARTS, COMPILE):
            raise BadMessage(f"seconds.{name} is unexpected")
        if type(value) is not float or not math.isfinite(value) or value < 0:
            raise BadMessage(f"seconds.{name} is not a number of seconds")
        found[name] = value
    return found


def to_record(seconds: Seconds) -> Record:
    """Convert a client's seconds to the content of a reply."""
    return {name: round(value, 4) for name, value in seconds.items()}


def summary(clients: Mapping[int, Seconds], arrived: Mapping[int, float]) -> dict[str, float]:
    """Return the largest and the mean seconds of all clients of a stage, by part.

    Args:
        clients: seconds of each client's step.
        arrived: seconds from the request to each client's reply.

    Returns:
        {"step_max": ..., "step_mean": ..., ..., "transport_max": ..., "transport_mean": ...}
    """
    found: dict[str, float] = {}
    for name in (*PARTS, COMPILE, TRANSPORT):
        values = [
            _transport(seconds, arrived[client]) if name == TRANSPORT else seconds.get(name, 0.0)
            for client, seconds in clients.items()
        ]
        if values:
            found[f"{name}_max"] = round(max(values), 3)
            found[f"{name}_mean"] = round(sum(values) / len(values), 3)
    return found


def _transport(seconds: Seconds, arrived: float) -> float:
    return max(0.0, arrived - sum(seconds.get(name, 0.0) for name in PARTS))
