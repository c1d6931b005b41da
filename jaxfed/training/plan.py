"""What each step of local training takes, drawn step by step or for many steps at once.

Hashes of one step's 64 rows are as many small operations as those of 32 steps' 2048, and nothing else of a
step can begin before them.
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


class Plan(NamedTuple):
    """What each step takes.

    Fields:
        num_steps: int32 scalar.
        rows: step -> (index int32 [B], used bool [B]), of a client's examples.
        beside: step and its key -> a pytree, `Batch.beside`; the loss knows what it is.
        ahead: so many steps are drawn at once, the last ones in vain if there are fewer.
    """

    num_steps: jax.Array
    rows: Rows
    beside: Callable[[jax.Array, jax.Array], Any] = _nothing
    ahead: int = 1


def drawn(plan: Plan, first: jax.Array, key: jax.Array) -> Plan:
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


def after_steps(plan: Plan, key: jax.Array, step_of: Callable[[Plan], Step], carry: Carry) -> Carry:
    """What is carried after all steps of a plan.

    Args:
        plan: the steps.
        key: typed, as in `drawn`.
        step_of: a plan that says what those steps take -> a step: number and carry -> carry.
        carry: what is there before the first one.
    """
    if plan.ahead == 1:
        return jax.lax.fori_loop(0, plan.num_steps, step_of(plan), carry)

    def some(turn: jax.Array, carry: Carry) -> Carry:
        first = turn * plan.ahead
        end = jnp.minimum(first + plan.ahead, plan.num_steps)
        return jax.lax.fori_loop(first, end, step_of(drawn(plan, first, key)), carry)

    turns = (plan.num_steps + plan.ahead - 1) // plan.ahead
    return jax.lax.fori_loop(0, turns, some, carry)
