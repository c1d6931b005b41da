"""Hamming distances by one message per client: private simultaneous messages with correlated masks.

The clients share a seed that the server does not know (XCLP, Algorithm 1, line 1). It determines masks
u_i in Z_{2^w}^L, one per point, and r_{i,m}, one per pair. For a point x_i of one client and y_m of another,
with masks u_i and v_m, each client sends one message to the server,

    E_i = x_i - u_i,   s_{i,m} = |x_i| - 2 <x_i, v_m> + r_{i,m}          (the first client of the pair)
    F_m = y_m - v_m,   t_{i,m} = |y_m| - 2 <u_i, F_m> - r_{i,m}          (the second)

    <x, y> = <E, F> + <x, v> + <u, F>,   so that   h = s + t - 2 <E, F>   (mod 2^w, 2^w > L)

Feige, Kilian and Naor (STOC 1994) introduced the setting; the protocol is this repository's, because the
paper's two need interaction. The server's view is simulated from H alone: E, F and s are uniform and
independent, t follows from them and h. Clients receive nothing. It rests on the assumption that the shared
seed needs anyway: a server that colludes with a client learns all bits. The same masks on two sets of points
would reveal the difference of the sets to the server, so every run derives its own seeds.

E does not depend on the partner, so a client sends it once.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.ring_product import ring_product
from jaxfed.secure.primitives.prg import Keystream

_PADDING = 128  # rows of a product are padded to a multiple: few shapes, few compilations
_FEW_PAIRS = 256  # up to here a float64 product of NumPy is 10 to 40 times faster
_STRIDE = 8  # pair masks of a row start at a multiple of 16 bytes


def point_masks(seed: bytes, points: range, num_bits: int, width: int) -> np.ndarray:
    """u of consecutive points of the seed's owner: uint16 [points, L], uniform modulo 2^width.

    `num_bits` is a multiple of 8.
    """
    stream = Keystream(seed, start=2 * num_bits * points.start)
    masks = stream.words(num_bits * len(points), "<u2").reshape(len(points), num_bits)
    return np.bitwise_and(masks, _mask(width), out=masks)


def pair_masks(
    seed: bytes, rows: range, columns: range, num_columns: int, width: int
) -> np.ndarray:
    """r of rows x columns out of a pair of clients' [.., num_columns]: uint16, modulo 2^width."""
    stride = -(-num_columns // _STRIDE) * _STRIDE
    stream = Keystream(seed, start=2 * stride * rows.start)
    masks = stream.words(stride * len(rows), "<u2").reshape(len(rows), stride)
    return masks[:, columns.start : columns.stop] & _mask(width)


def hidden_points(bits: np.ndarray, masks: np.ndarray, width: int) -> np.ndarray:
    """E = x - u modulo 2^width: uint16 [n, L] from bits of any integer type."""
    return (bits.astype(np.uint16) - masks) & _mask(width)


def first_share(
    bits: np.ndarray, partner_masks: np.ndarray, pair_mask: np.ndarray, width: int
) -> np.ndarray:
    """s of a block of pairs, uint16 [n, m]: x int8 [n, L], v uint16 [m, L], r uint16 [n, m].

    Cost: 2 n m L multiply-adds of int8.
    """
    inner = _product(partner_masks, bits).T
    weight = bits.sum(axis=1, dtype=np.uint16)[:, None]
    return (weight - 2 * inner + pair_mask) & _mask(width)


def second_share(
    bits: np.ndarray,
    hidden: np.ndarray,
    partner_masks: np.ndarray,
    pair_mask: np.ndarray,
    width: int,
) -> np.ndarray:
    """t of a block of pairs, uint16 [n, m]: y int8 [m, L], F uint16 [m, L], u uint16 [n, L], r.

    Cost: 3 n m L multiply-adds of int8.
    """
    inner = _product(partner_masks, hidden)
    weight = bits.sum(axis=1, dtype=np.uint16)[None, :]
    return (weight - 2 * inner - pair_mask) & _mask(width)


def combined_distances(
    first: np.ndarray, second: np.ndarray, share: np.ndarray, other_share: np.ndarray, width: int
) -> np.ndarray:
    """h of a block of pairs, uint16 [n, m], from E [n, L], F [m, L], s and t [n, m].

    Cost: 3 n m L multiply-adds of int8.
    """
    return (share + other_share - 2 * _product(first, second)) & _mask(width)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B^T modulo 2^16 of NumPy arrays, on the accelerator if there is one, unless there are few rows."""
    if len(a) * len(b) <= _FEW_PAIRS:  # exact: sums stay below 2^16 2^32
        return (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.int64).astype(np.uint16)
    product = ring_product(jnp.asarray(_padded(a)), jnp.asarray(_padded(b)))
    return np.asarray(product)[: len(a), : len(b)]


def _padded(rows: np.ndarray) -> np.ndarray:
    """Zero rows added up to a multiple of `_PADDING`."""
    missing = -len(rows) % _PADDING
    if not missing:
        return rows
    return np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)])


def _mask(width: int) -> np.uint16:
    return np.uint16((1 << width) - 1)
