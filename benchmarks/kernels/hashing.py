"""LSH projection, and dense blocks of Hamming distances."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import inputs
from benchmarks.timing.contest import Contest, Work
from jaxfed.kernels import hamming, lsh

NUM_BITS = 4096


def projection(with_peers: bool) -> Iterator[Contest]:
    """sign(Pi v), packed, L = 4096, d = 128; the peer multiplies and packs with NumPy, Pi ready."""
    for n in (2_500, 10_000, 50_000):
        vectors = inputs.features(n)[0]
        on_device, key = jnp.asarray(vectors), jax.random.key(0)
        pi = np.random.default_rng(0).standard_normal((NUM_BITS, vectors.shape[1]), np.float32)

        def numpy_bits(vectors: np.ndarray = vectors, pi: np.ndarray = pi) -> np.ndarray:
            return np.packbits(vectors @ pi.T >= 0, axis=1, bitorder="little")

        yield Contest(
            task="LSH projection",
            case={"n": n, "d": vectors.shape[1], "num_bits": NUM_BITS},
            ours=partial(lsh.project_bits, on_device, key, NUM_BITS),
            peers={"numpy": numpy_bits} if with_peers else {},
            work=Work(2 * n * vectors.shape[1] * NUM_BITS, "matmul_f32_flops"),
        )


def distances(with_peers: bool) -> Iterator[Contest]:
    """All Hamming distances of 2,000 x 8,000 codes; the peer is NumPy's bitwise_count over rows."""
    n, m = 2_000, 8_000
    a, b = inputs.codes(n, NUM_BITS, "uniform"), inputs.codes(m, NUM_BITS, "uniform")
    a64, b64 = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)

    def numpy_distances() -> np.ndarray:
        return np.stack([np.bitwise_count(row ^ b64).sum(axis=1, dtype=np.int32) for row in a64])

    def equal(ours: jax.Array, theirs: np.ndarray) -> str:
        assert np.array_equal(ours, theirs), "Hamming distances differ"
        return "equal"

    for backend in ("popcount", "matmul"):
        yield Contest(
            task=f"Hamming distances, {backend}",
            case={"n": n, "m": m, "num_bits": NUM_BITS},
            ours=partial(hamming.distances, a, b, backend=backend),
            peers={"numpy": numpy_distances} if with_peers and backend == "popcount" else {},
            agreement=equal,
            work=Work(n * m * NUM_BITS, "popcount_bits"),
        )
