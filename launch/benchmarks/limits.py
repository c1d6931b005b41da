"""The machine's own limits, measured: what a figure can be held against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp


def machine_limits() -> dict[str, float]:
    """Rates per second that this machine reaches on work chosen to reach them.

    bytes: memory traffic, read plus written, of y = x + 1 over arrays far larger than the caches.
    matmul_f32_flops: float32 product of two square matrices, 2 n^3 operations.
    matmul_int8_ops: the same for int8 with int32 sums, accelerators only.
    popcount_bits: bits compared by XOR, popcount and add over words that stay in the cache.
    """
    accelerated = jax.default_backend() != "cpu"
    stream = jnp.ones(2**28 if accelerated else 2**26, jnp.float32)
    limits = {"bytes": 2 * stream.nbytes / _seconds(jax.jit(lambda x: x + 1), stream)}
    del stream

    n = 8192 if accelerated else 2048
    key = jax.random.key(0)
    a = jax.random.normal(key, (n, n), jnp.float32)
    product = jax.jit(partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST))
    limits["matmul_f32_flops"] = 2 * n**3 / _seconds(product, a, a)
    if accelerated:
        a = jax.random.randint(key, (n, n), -1, 2, jnp.int8)
        product = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.int32))
        limits["matmul_int8_ops"] = 2 * n**3 / _seconds(product, a, a)

    words, rounds = jax.random.bits(key, (64, 2048), jnp.uint32), 2000
    passes = jax.jit(partial(_popcount_passes, rounds=rounds))
    limits["popcount_bits"] = rounds * words.size * 32 / _seconds(passes, words)
    return limits


def _popcount_passes(words: jax.Array, rounds: int) -> jax.Array:
    """Each round compares every word with a query word that differs by round."""

    def one(t: jax.Array, total: jax.Array) -> jax.Array:
        return total + jax.lax.population_count(words ^ t.astype(jnp.uint32))

    return jax.lax.fori_loop(0, rounds, one, jnp.zeros_like(words))


def _seconds(compute: Callable[..., jax.Array], *inputs: jax.Array) -> float:
    compute(*inputs).block_until_ready()
    times = []
    for _ in range(7):
        start = time.perf_counter()
        compute(*inputs).block_until_ready()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
