"""Hamming distances between packed codes, by counting bits or by a matrix product.

Both backends give the same integers. With bits b in {0, 1}^L and signs s = 2 b - 1:

    popcount:  h(b, b') = sum_w popcount(b_w XOR b'_w)
    matmul:    h(b, b') = (L - <s, s'>) / 2
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap

from jaxfed.errors import UsageError
from jaxfed.kernels import lsh

BACKENDS = ("auto", "popcount", "matmul")

# Bits counted per sweep over a tile. Measured with XLA on AVX-512 (4096 bits): 128 and 256 are equal,
# 512 is 1.3 times slower on the best tile and up to 3 times slower on others.
_BITS_PER_PASS = 256

# The number of points per side of a tile is a multiple of this.
TILE_MULTIPLE = 32

_T = TypeVar("_T")


def distances(a: jax.Array, b: jax.Array, *, backend: str = "auto") -> jax.Array:
    """All Hamming distances between two sets of codes.

    Args:
      a: uint32 [n, W], packed codes (`lsh.project_bits`).
      b: uint32 [m, W].
      backend: "popcount", "matmul", or "auto": popcount on CPU, matmul elsewhere. Measured on two
        AVX-512 cores, m = 4096, in Gbit/s (n m L / time): at L = 4096, popcount 800 to 1650 against
        100 to 190 for n = 32 to 4096; at L = 512, 240 against 110; at L = 64 both about 25, spent
        on writing the result. So the CPU rule has no threshold. On an H200 the ten nearest of
        100,000 codes of 4096 bits take 0.27 s by matmul and 1.20 s by popcount. On a TPU matmul is
        chosen by reasoning: it has a matrix unit and no comparable popcount.

    Returns:
      int32 [n, m].

    Raises:
      UsageError: unknown backend, a dtype other than uint32, or codes of different lengths.

    Cost: n m L / 32 word operations (popcount) or n m L multiply-adds (matmul). Beside the result,
    memory for a row of tiles of at most 1024 (popcount) or 4096 (matmul) points.
    """
    check_backend(backend)
    a, b = check_codes(a), check_codes(b)
    if a.shape[1] != b.shape[1]:
        raise UsageError(
            "codes must have equal lengths, got "
            f"{a.shape[1] * lsh.WORD_BITS} and {b.shape[1] * lsh.WORD_BITS} bits"
        )
    return _distances(a, b, backend)


@partial(jax.jit, static_argnames="backend")
def _distances(a: jax.Array, b: jax.Array, backend: str) -> jax.Array:
    return on_platform(backend, _distances_by, a, b)


def _distances_by(kernel: "TileKernel", a: jax.Array, b: jax.Array) -> jax.Array:
    n, m = a.shape[0], b.shape[0]
    rows, columns = (tiles(kernel.words(codes), kernel.width) for codes in (a, b))
    start = jnp.zeros((rows.shape[2], columns.shape[2]), distance_dtype(a.shape[1]))

    def rows_of_distances(row_tile: jax.Array) -> jax.Array:
        of_tiles = lax.map(lambda tile: kernel.distances(row_tile, tile, start), columns)
        return of_tiles.swapaxes(0, 1).reshape(start.shape[0], -1)[:, :m].astype(jnp.int32)

    return lax.map(rows_of_distances, rows).reshape(rows.shape[0] * start.shape[0], m)[:n]


def tiles(points: jax.Array, width: int) -> jax.Array:
    """Cut [n, W] into equal tiles of points, words first: [tiles, W, points], zero-padded.

    Words first, because a sweep over a tile reads the same few words of all its points. A tile
    holds at most `width` points and a multiple of 32. The padding is less than 32 points a tile,
    except that there is always one tile.
    """
    n, num_words = points.shape
    num_tiles = max(1, -(-n // width))
    width = max(1, -(-n // (num_tiles * TILE_MULTIPLE))) * TILE_MULTIPLE
    padded = jnp.pad(points, ((0, num_tiles * width - n), (0, 0)))
    return padded.reshape(num_tiles, width, num_words).swapaxes(1, 2)


def distance_dtype(num_words: int) -> jnp.dtype:
    """Smallest dtype that holds 2 L + 1, a distance on top of the mark of an excluded pair."""
    longest = 2 * num_words * lsh.WORD_BITS + 1
    return jnp.dtype(jnp.int16 if longest <= jnp.iinfo(jnp.int16).max else jnp.int32)


def _by_popcount(a: jax.Array, b: jax.Array, start: jax.Array) -> jax.Array:
    """Sweeps over the tile, each adding the counts of a few words in one vectorized loop.

    Reducing over the words inside one expression would make them the innermost loop, which XLA:CPU
    does not vectorize: 20 to 100 times slower.
    """
    num_words, dtype = a.shape[0], a.dtype
    words_per_pass = _BITS_PER_PASS // jnp.iinfo(dtype).bits

    def add_words(first: jax.Array | int, count: int, total: jax.Array) -> jax.Array:
        differing = jnp.zeros(total.shape, dtype)
        for offset in range(count):
            # Each word by its own index: slicing several first makes XLA copy them.
            word_a = lax.dynamic_index_in_dim(a, first + offset, keepdims=False)
            word_b = lax.dynamic_index_in_dim(b, first + offset, keepdims=False)
            differing += lax.population_count(word_a[:, None] ^ word_b[None, :])
        return total + differing.astype(total.dtype)

    passes, rest = divmod(num_words, words_per_pass)
    total = lax.fori_loop(
        0, passes, lambda i, total: add_words(i * words_per_pass, words_per_pass, total), start
    )
    return add_words(num_words - rest, rest, total) if rest else total


def halves(codes: jax.Array) -> jax.Array:
    """uint32 [n, W] -> uint16 [n, 2 W]: counts of 16-bit words are added to int16 sums lane by lane."""
    n, num_words = codes.shape
    return lax.bitcast_convert_type(codes, jnp.uint16).reshape(n, 2 * num_words)


def _by_matmul(a: jax.Array, b: jax.Array, start: jax.Array) -> jax.Array:
    """(L - <s, s'>) / 2 with signs in int8 and sums in int32, hence exact."""
    num_bits = a.shape[0] * lsh.WORD_BITS
    agreement = lax.dot_general(
        _signs(a), _signs(b), (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32
    )
    return start + ((num_bits - agreement) // 2).astype(start.dtype)


def _signs(tile: jax.Array) -> jax.Array:
    """Words-first codes [W, r] as int8 [r, 32 W] of +1 and -1."""
    return jnp.where(lsh.unpack_bits(tile.T), jnp.int8(1), jnp.int8(-1))


class TileKernel(NamedTuple):
    """A kernel for the distances of a tile, and the tile size that suits it."""

    # uint32 [n, W] -> [n, words]: codes in the kernel's format.
    words: Callable[[jax.Array], jax.Array]
    # (a [words, r], b [words, c], start [r, c]) -> [r, c]: the distances, added to `start`.
    distances: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    width: int  # points a side
    sequential: bool  # under vmap, process one element of the batch after another
    pairs_once: bool  # among points, count each distance once (`jaxfed.kernels.symmetric_knn`)


# popcount: 1024 x 1024 keeps both operands' words of a pass and the sums in a core's L2 cache, and
# a sweep is long enough to be split over threads. Of 64 to 1024 x 256 to 2048 points it was the
# fastest (3100 Gbit/s; 64 x 1024: 1600). Lanes of 16 bits, whose counts need no narrowing before they
# are added, took 169 ms where those of 32 bits took 185, and those of 8 bits 313.
# A batch of tiles would leave the cache: 100 clients of 600 points ran at half the rate of one after another.
# matmul, by reasoning: a product of 4096 x 4096 x L is long against its launch, and
# tensor cores want small clients in one batch.
_KERNELS = {
    "popcount": TileKernel(halves, _by_popcount, width=1024, sequential=True, pairs_once=True),
    "matmul": TileKernel(
        lambda codes: codes, _by_matmul, width=4096, sequential=False, pairs_once=False
    ),
}


def on_platform(backend: str, function: Callable[..., _T], *operands: jax.Array) -> _T:
    """`function(kernel, *operands)` with the `TileKernel` of `backend`.

    "auto" is resolved when the program is lowered, so one traced program serves every platform.
    """
    by_kernel = {
        name: sequential_vmap(partial(function, kernel))
        if kernel.sequential
        else partial(function, kernel)
        for name, kernel in _KERNELS.items()
    }
    if backend != "auto":
        return by_kernel[backend](*operands)
    return lax.platform_dependent(*operands, cpu=by_kernel["popcount"], default=by_kernel["matmul"])


def check_backend(backend: str) -> None:
    """Raise `UsageError` unless `backend` is one of `BACKENDS`."""
    if backend not in BACKENDS:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")


def check_codes(codes: jax.Array) -> jax.Array:
    """Return `codes` as an array; raise `UsageError` unless it is uint32 [n, W] with W > 0."""
    codes = jnp.asarray(codes)
    if codes.dtype != jnp.uint32 or codes.ndim != 2 or codes.shape[1] == 0:
        raise UsageError(
            f"codes must be uint32 [n, words], got {codes.dtype} of shape {codes.shape}"
        )
    return codes
