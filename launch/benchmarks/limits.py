"""The machine's own limits, measured: what a figure can be held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp


def machine_limits() -> dict[str, float]:
    """Rates per second that this machine reaches on work chosen to reach them.

    bytes: memory traffic, read plus written, of repeated x = x + 1 over an array far larger than the
        caches.
    matmul_f32_flops: float32 product of two square matrices, 2 n^3 operations.
    matmul_bf16_flops: the same in bfloat16 with float32 sums, accelerators only.
    matmul_int8_ops: the same for int8 with int32 sums, accelerators only.
    popcount_bits: bits compared by XOR, popcount and add, 128 times with a number for every word read.
    """
    accelerated = jax.default_backend() != "cpu"
    stream, passes = jnp.ones(2**28 if accelerated else 2**26, jnp.float32), 8
    increment = jax.jit(lambda x: jax.lax.fori_loop(0, passes, lambda _, x: x + 1, x))
    limits = {"bytes": 2 * passes * stream.nbytes / _seconds(increment, stream)}
    del stream

    n = 8192 if accelerated else 2048
    key = jax.random.key(0)
    a = jax.random.normal(key, (n, n), jnp.float32)
    product = jax.jit(partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST))
    limits["matmul_f32_flops"] = 2 * n**3 / _seconds(product, a, a)
    if accelerated:
        short = a.astype(jnp.bfloat16)
        product = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.float32))
        limits["matmul_bf16_flops"] = 2 * n**3 / _seconds(product, short, short)
        a = jax.random.randint(key, (n, n), -1, 2, jnp.int8)
        product = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.int32))
        limits["matmul_int8_ops"] = 2 * n**3 / _seconds(product, a, a)

    words, rounds = jax.random.bits(key, (2**20,), jnp.uint32), 128
    limits["popcount_bits"] = (
        32 * rounds * len(words) / _seconds(jax.jit(_popcounts(rounds)), words)
    )
    return limits


def _popcounts(rounds: int) -> Callable[[jax.Array], jax.Array]:
    """Sums of popcounts of every word with so many numbers: nothing to load or store in between."""

    def sums(words: jax.Array) -> jax.Array:
        total = jnp.zeros_like(words)
        for number in range(rounds):
            total += jax.lax.population_count(words ^ jnp.uint32(0x9E3779B1 * number % 2**32))
        return total

    return sums


def _seconds(compute: Callable[..., jax.Array], *inputs: jax.Array) -> float:
    compute(*inputs).block_until_ready()
    times = []
    for _ in range(15):
        start = time.perf_counter()
        compute(*inputs).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times)  # a limit is the best there is
