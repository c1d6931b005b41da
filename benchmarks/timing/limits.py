"""Measured limits of the machine, with which figures are compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.timing.contest import OTHERS_ALLOWED, others_cpu_seconds

PASSES, REPEATS = 3, 5  # others may have taken the cores during one of them


class Limits(NamedTuple):
    """Rates per second by name, and the least number of our cores that other processes used meanwhile."""

    rates: dict[str, float]
    others_cpu_share: float

    @property
    def doubt(self) -> str | None:
        """Reason not to trust shares of these rates, or None."""
        if jax.default_backend() != "cpu" or self.others_cpu_share <= OTHERS_ALLOWED:
            return None
        return (
            f"other processes took {self.others_cpu_share:.2f} cores while the machine's limits were "
            "measured: they may be too low, and shares of them too high"
        )


def machine_limits() -> Limits:
    """Rates per second that this machine reaches on work chosen to reach them, the best of all passes.

    bytes: memory traffic, read plus written, of repeated x = x + 1 over an array far larger than the
        caches.
    matmul_f32_flops: float32 product of two square matrices, 2 n^3 operations.
    matmul_bf16_flops: the same in bfloat16 with float32 sums, accelerators only.
    matmul_int8_ops: the same for int8 with int32 sums, accelerators only.
    popcount_bits: bits compared by XOR, popcount and add, 128 times with a number for every word read.
    """
    work = _work(jax.default_backend() != "cpu")
    for _, compute in work.values():
        compute()  # compiles
    rates, shares = dict.fromkeys(work, 0.0), []
    for _ in range(PASSES):
        busy, start = others_cpu_seconds(), time.perf_counter()
        for name, (amount, compute) in work.items():
            rates[name] = max(rates[name], amount / _seconds(compute))
        shares.append((others_cpu_seconds() - busy) / (time.perf_counter() - start))
    return Limits(rates, max(0.0, min(shares)))


def _work(accelerated: bool) -> dict[str, tuple[float, Callable[[], jax.Array]]]:
    """Return name -> amount of work, and a function that does it."""
    work: dict[str, tuple[float, Callable[[], jax.Array]]] = {}
    stream, passes = jnp.ones(2**28 if accelerated else 2**26, jnp.float32), 8
    increment = jax.jit(lambda x: jax.lax.fori_loop(0, passes, lambda _, x: x + 1, x))
    work["bytes"] = 2 * passes * stream.nbytes, partial(increment, stream)

    n = 8192 if accelerated else 2048
    key = jax.random.key(0)
    a = jax.random.normal(key, (n, n), jnp.float32)
    product = jax.jit(partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST))
    work["matmul_f32_flops"] = 2 * n**3, partial(product, a, a)
    if accelerated:
        short = a.astype(jnp.bfloat16)
        product = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.float32))
        work["matmul_bf16_flops"] = 2 * n**3, partial(product, short, short)
        a = jax.random.randint(key, (n, n), -1, 2, jnp.int8)
        product = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.int32))
        work["matmul_int8_ops"] = 2 * n**3, partial(product, a, a)

    words, rounds = jax.random.bits(key, (2**20,), jnp.uint32), 128
    work["popcount_bits"] = (
        32 * rounds * len(words),
        partial(jax.jit(_popcounts(rounds)), words),
    )
    return work


def _popcounts(rounds: int) -> Callable[[jax.Array], jax.Array]:
    """Return a function that sums popcounts of every word with `rounds` numbers, without memory traffic."""

    def sums(words: jax.Array) -> jax.Array:
        total = jnp.zeros_like(words)
        for number in range(rounds):
            total += jax.lax.population_count(words ^ jnp.uint32(0x9E3779B1 * number % 2**32))
        return total

    return sums


def _seconds(compute: Callable[[], jax.Array]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        compute().block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times)  # a limit is the best there is
