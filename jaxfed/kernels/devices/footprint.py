"""Device memory of a compiled program, from XLA's own analysis before it runs.

    total = arguments + results + working memory - results that reuse an argument's memory

Memory that libraries allocate themselves, when XLA calls them, is not included. On a CPU these are products
fused with neighboring operations (YNNPACK), which hold blocks of their operands.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax


class Footprint(NamedTuple):
    """Bytes on one device, the largest of all if a program runs on several.

    Fields:
        arguments: the program's inputs, which exist before it runs.
        results: its outputs.
        working: temporary memory while it runs.
    """

    arguments: int
    results: int
    working: int

    @property
    def total(self) -> int:
        """All memory in use while the program runs."""
        return self.arguments + self.results + self.working


def footprint(program: Any, *arguments: Any, **keywords: Any) -> Footprint:
    """Footprint of `program(*arguments)`, under `jax.jit`; arrays or their shapes (`jax.ShapeDtypeStruct`).

    Cost: compilation, which later calls with such arrays reuse.
    """
    lowered = program.lower(*arguments, **keywords)
    analysis = lowered.compile().memory_analysis()
    if analysis is None:  # a backend without analysis: inputs and outputs are known
        return Footprint(_bytes_of(lowered.args_info), _bytes_of(lowered.out_info), 0)
    return Footprint(
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
    )


def _bytes_of(tree: Any) -> int:
    return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
