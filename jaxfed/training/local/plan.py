"""Plans of local training: the rows of each step, drawn step by step or for many steps at once.

Hashing the 64 rows of one step takes as many small operations as hashing the 2048 rows of 32 steps, and
nothing else of a step can begin before that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Carry = Any
Step = Callable[[jax.Array, Carry], Carry]
Rows = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def _nothing(step: jax.Array, key: jax.Array) -> tuple[()]:
    del step, key
    return ()


class BatchPlan(NamedTuple):
    """The rows, and further draws, of each step.

    Fields:
        num_steps: int32 scalar.
        rows: step -> (index int32 [B], used bool [B]), of a client's examples.
        beside: step and its key -> a pytree, `Batch.beside`; the loss defines its meaning.
        ahead: number of steps drawn at once; draws beyond the last step are wasted.
    """

    num_steps: jax.Array
    rows: Rows
    beside: Callable[[jax.Array, jax.Array], Any] = _nothing
    ahead: int = 1


def drawn(plan: BatchPlan, first: jax.Array, key: jax.Array) -> BatchPlan:
    """The same plan with the draws of steps first..first + ahead - 1 done, and no others.

    Args:
        plan: of `ahead` steps at once.
        first: int32 scalar.
        key: typed; a step's own is folded in from it.
    """
    steps = first + jnp.arange(plan.ahead, dtype=jnp.int32)
    rows = jax.vmap(plan.rows)(steps)
    beside = jax.vmap(lambda step: plan.beside(step, jax.random.fold_in(key, step)))(steps)

    def at(table: Any, step: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[step - first], table)

    return plan._replace(
        rows=lambda step: at(rows, step), beside=lambda step, key: at(beside, step)
    )


def after_steps(
    plan: BatchPlan, key: jax.Array, step_of: Callable[[BatchPlan], Step], carry: Carry
) -> Carry:
    """Run all steps of a plan, and return the final carry.

    Args:
        plan: the steps.
        key: typed, as in `drawn`.
        step_of: plan with the draws of these steps -> step function, number and carry -> carry.
        carry: the value before the first step.
    """
    if plan.ahead == 1:
        return jax.lax.fori_loop(0, plan.num_steps, step_of(plan), carry)

    def some(turn: jax.Array, carry: Carry) -> Carry:
        first = turn * plan.ahead
        end = jnp.minimum(first + plan.ahead, plan.num_steps)
        return jax.lax.fori_loop(first, end, step_of(drawn(plan, first, key)), carry)

    turns = (plan.num_steps + plan.ahead - 1) // plan.ahead
    return jax.lax.fori_loop(0, turns, some, carry)
