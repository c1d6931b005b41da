"""Floating-point operations of a program, by XLA's own analysis, without running it.

XLA's `HloCostAnalysis` counts a multiply-add as two and an elementwise operation as one, in the program as it
was lowered. In a program compiled for a CPU, matrix products and convolutions are library calls, which count
as zero. The analysis does not know the number of turns of a loop and counts every body once. So here

    ops(program) = xla(program) + sum over its loops (turns * ops(body) - xla(body))

with the turns of a `scan` from the program, and those of a `while` from the caller. XLA's convolution omits
the taps that fall on the padding. The same convolution as a matrix product
(`jaxfed.kernels.convolution.conv`) includes them, as does the count that papers make by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core


def operations(function: Callable[..., Any], *arguments: Any, turns: float = 1) -> float:
    """Operations of `function(*arguments)`.

    Args:
        function: jit-traceable.
        arguments: arrays, or their shapes (`jax.ShapeDtypeStruct`).
        turns: number of turns of each outermost loop of unknown length (`while`); such loops inside others,
            as in a rejection sampler, count with one turn.

    Cost: lowering the program and its loops' bodies; nothing is compiled.
    """
    return _operations(jax.make_jaxpr(function)(*arguments), turns)


def _operations(program: core.ClosedJaxpr, turns: float) -> float:
    total = _once(program)
    for name, body, length in _loops(program.jaxpr):
        is_scan = name == "scan"
        inside = _operations(body, turns if is_scan else 1)
        total += (length if is_scan else turns) * inside - _once(body)
    return total


def _once(program: core.ClosedJaxpr) -> float:
    """XLA's count, with the bodies of loops counted once."""
    arguments = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.jaxpr.invars]
    lowered = jax.jit(core.jaxpr_as_fun(program)).lower(*arguments)
    return float((lowered.cost_analysis() or {}).get("flops", 0.0))


def _loops(jaxpr: Any) -> Iterator[tuple[str, core.ClosedJaxpr, int]]:
    """The outermost loops of a program: kind, body, and the turns of a `scan`."""
    for equation in jaxpr.eqns:
        name, values = equation.primitive.name, equation.params
        if name == "while":
            yield name, values["body_jaxpr"], 0
        elif name == "scan":
            yield name, values["jaxpr"], values["length"]
        else:
            for value in jax.tree.leaves(list(values.values()), is_leaf=_is_program):
                if _is_program(value):
                    yield from _loops(getattr(value, "jaxpr", value))


def _is_program(value: Any) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)
