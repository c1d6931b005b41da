"""What memory of a device a compiled program takes: by XLA's own analysis, before it runs.

    total = arguments + results + working memory - results that take an argument's place

What a library takes for itself that XLA calls for a part of the program is not in it: on a CPU, products
fused with what surrounds them (YNNPACK), which hold blocks of their operands.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax


class Footprint(NamedTuple):
    """Bytes on one device, the largest of all where a program runs on several.

    Fields:
        arguments: what it is given, which is there before it runs.
        results: what it makes and leaves.
        working: what it needs between the two.
    """

    arguments: int
    results: int
    working: int

    @property
    def total(self) -> int:
        """All that is there while it runs."""
        return self.arguments + self.results + self.working


def footprint(program: Any, *arguments: Any, **keywords: Any) -> Footprint:
    """Of `program(*arguments)`, under `jax.jit`, of arrays or their shapes (`jax.ShapeDtypeStruct`).

    Cost: that of compiling it, which is not paid again when it is called with arrays like these.
    """
    lowered = program.lower(*arguments, **keywords)
    analysis = lowered.compile().memory_analysis()
    if analysis is None:  # a backend that says nothing: what it is given and makes is known
        return Footprint(_bytes_of(lowered.args_info), _bytes_of(lowered.out_info), 0)
    return Footprint(
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
    )


def _bytes_of(tree: Any) -> int:
    return sum(leaf.dtype.itemsize * _size(leaf.shape) for leaf in jax.tree.leaves(tree))


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
