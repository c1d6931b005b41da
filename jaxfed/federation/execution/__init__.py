"""Execution of a cohort's clients: strategies, chunk sizes under a memory limit, cached results.

It changes speed and memory, never results beyond rounding. `Execution` and `HERE` are imported from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxfed.registry import imported_on_use

if TYPE_CHECKING:
    from jaxfed.federation.execution.settings import HERE, Execution

__all__ = ["HERE", "Execution"]

__getattr__ = imported_on_use(__name__, dict.fromkeys(__all__, "settings"))
