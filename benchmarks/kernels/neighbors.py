"""Exact kNN against FAISS and scikit-learn, Hamming on a GPU against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import inputs
from benchmarks.timing.contest import Contest, Work, optional_peer
from jaxfed.kernels import knn

NUM_BITS, NUM_NEIGHBORS = 4096, 10
_MOST_QUERIES = 32_768  # of a peer on a CPU; more would take minutes a round
_BOTH_KINDS = 32_768  # points up to which both kinds of codes are measured
_FAISS = "faiss IndexBinaryFlat"
_TARGETS = {4_096: 1.5, 8_192: 1.5, 10_000: 1.5, 32_768: 1.3, 100_000: 1.3}


def hamming_knn(with_peers: bool, sizes: Sequence[int] = ()) -> Iterator[Contest]:
    """10 nearest others by Hamming distance, L = 4096, on codes of features and on uniform bits.

    With `sizes`, on codes of features alone. A distance and its mirror image count as two operations,
    even if computed once.
    """
    on_gpu = jax.default_backend() == "gpu"
    for n in sizes or _TARGETS:
        for kind in ("features", "uniform") if n <= _BOTH_KINDS and not sizes else ("features",):
            codes = inputs.codes(n, NUM_BITS, kind)
            peer: dict[str, Callable[[], Any]] = {}
            if with_peers and on_gpu:
                peer = optional_peer("torch int8 product + topk", _torch_knn, codes)
            elif with_peers:
                peer = optional_peer(_FAISS, _faiss_binary, codes, min(n, _MOST_QUERIES))
                if sizes:
                    peer |= optional_peer("scikit-learn brute", _scikit_hamming, codes)
            yield Contest(
                task="exact Hamming 10-NN",
                case={"n": n, "num_bits": NUM_BITS, "codes": kind},
                ours=partial(knn.hamming_knn, codes, NUM_NEIGHBORS),
                peers=peer,
                agreement=_same_distances,
                work=Work(2 * n * n * NUM_BITS, "matmul_int8_ops")
                if on_gpu
                else Work(n * n * NUM_BITS, "popcount_bits"),
                targets={_FAISS: _TARGETS[n]} if n in _TARGETS and not on_gpu else {},
                parts={_FAISS: _MOST_QUERIES / n} if n > _MOST_QUERIES and not on_gpu else {},
            )


def cosine_knn(with_peers: bool, sizes: Sequence[int] = ()) -> Iterator[Contest]:
    """10 nearest others by exact cosine, d = 128."""
    for n in sizes or (2_500, 10_000):
        vectors = inputs.features(n)[0]
        peer = {}
        if with_peers and jax.default_backend() == "cpu":
            peer = optional_peer("faiss IndexFlatIP", _faiss_cosine, vectors)
            if sizes:
                peer |= optional_peer("scikit-learn brute", _scikit_cosine, vectors)

        def close(ours: Any, theirs: Any) -> str:
            difference = float(np.max(np.abs(np.asarray(ours[1]) - theirs)))
            assert difference < 1e-4, f"cosines differ by {difference}"
            return f"largest difference {difference:.1e}"

        yield Contest(
            task="exact cosine 10-NN",
            case={"n": n, "d": vectors.shape[1]},
            ours=partial(knn.cosine_knn, jnp.asarray(vectors), NUM_NEIGHBORS),
            peers=peer,
            agreement=close,
            work=Work(2 * n * n * vectors.shape[1], "matmul_f32_flops"),
        )


def _same_distances(ours: Any, theirs: np.ndarray) -> str:
    """Check that sorted distances are equal; peers may break ties differently."""
    assert np.array_equal(np.asarray(ours[1])[: len(theirs)], theirs), "kNN distances differ"
    return "distances equal"


def _faiss_binary(codes: jax.Array, num_queries: int) -> Callable[[], np.ndarray]:
    import faiss

    packed = inputs.packed_bytes(codes)
    index = faiss.IndexBinaryFlat(8 * packed.shape[1])
    index.add(packed)

    def search() -> np.ndarray:
        # A point is its own nearest neighbor, at distance 0; the other k count.
        return index.search(packed[:num_queries], NUM_NEIGHBORS + 1)[0][:, 1:]

    return search


def _faiss_cosine(vectors: np.ndarray) -> Callable[[], np.ndarray]:
    import faiss

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(unit)
    return lambda: index.search(unit, NUM_NEIGHBORS + 1)[0][:, 1:]


def _scikit_hamming(codes: jax.Array) -> Callable[[], np.ndarray]:
    """scikit-learn's Hamming search by cosines of bits as signs, 1 - 2 h / L: its fastest way to h.

    The cosine is a float32 product. Squared Euclidean distances are in float64, and "hamming" takes two
    points at a time.
    """
    from sklearn.neighbors import NearestNeighbors

    @cache  # 16 KiB a point, made only if the search is not too slow
    def index() -> Any:
        bits = np.unpackbits(inputs.packed_bytes(codes), axis=1).astype(np.float32)
        nearest = NearestNeighbors(n_neighbors=NUM_NEIGHBORS, algorithm="brute", metric="cosine")
        return nearest.fit(2 * bits - 1)

    half = 16 * codes.shape[1]
    return lambda: np.rint(half * index().kneighbors()[0]).astype(np.int32)


def _scikit_cosine(vectors: np.ndarray) -> Callable[[], np.ndarray]:
    """Cosines from |u - v|^2 = 2 - 2 cos of unit vectors; for few features faster than metric "cosine"."""
    from sklearn.neighbors import NearestNeighbors

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    index = NearestNeighbors(n_neighbors=NUM_NEIGHBORS, algorithm="brute", metric="sqeuclidean")
    index.fit(unit)
    return lambda: 1 - index.kneighbors()[0] / 2


def _torch_knn(codes: jax.Array, block: int = 4096) -> Callable[[], np.ndarray]:
    """Typical PyTorch code: int8 +-1 products in row blocks on the GPU, then topk."""
    import torch

    bits = np.unpackbits(inputs.packed_bytes(codes), axis=1, bitorder="little")
    signs = torch.from_numpy(bits.astype(np.int8) * 2 - 1).cuda()

    def search() -> np.ndarray:
        nearest = []
        for start in range(0, len(signs), block):
            agreement = torch._int_mm(signs[start : start + block], signs.T)
            distance = (signs.shape[1] - agreement) // 2
            rows = torch.arange(len(distance), device="cuda")
            distance[rows, start + rows] = signs.shape[1] + 1
            nearest.append(distance.topk(NUM_NEIGHBORS, largest=False).values)
        torch.cuda.synchronize()
        return torch.cat(nearest).int().cpu().numpy()

    return search
