"""The error of cosines estimated by LSH codes: a diagnostic of a simulation, which sees all vectors."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import graph, hamming, lsh
from jaxfed.kernels.devices import padded_rows

_ROWS_AT_ONCE = 4096


def cosine_rmse(
    parts: Sequence[np.ndarray], key: jax.Array, num_bits: int, *, num_points: int = 512
) -> tuple[float, float]:
    """Root-mean-square error of cos(pi h / L) against the exact cosine, measured and by theory.

    Over all pairs of up to `num_points` of the points, chosen at random with a fixed seed. In theory each bit
    of a pair at angle theta differs independently with probability p = theta / pi, so h is Binomial(L, p)
    and, with the characteristic function E e^{iuh} = (1 - p + p e^{iu})^L,

        MSE = (1 + Re E e^{2 pi i h / L}) / 2 - 2 cos(theta) Re E e^{pi i h / L} + cos(theta)^2,

    exactly (not the delta method's pi^2 sin^2(theta) p (1 - p) / L). The bits of one pair are
    independent over the draw of Pi. Different pairs share Pi; that does not change the mean over pairs.

    Args:
        parts: float [n_i, d], the points of one or several clients; they may lie on disk.
        key: the typed key that Pi is drawn from.
        num_points: maximum number of points; cost is its square times (d + L / 32).

    Returns:
        (measured, theory); (nan, nan) for fewer than two points of non-zero norm.
    """
    norms = np.concatenate([_norms(part) for part in parts])
    usable = np.flatnonzero(norms > 0)
    if len(usable) < 2:
        return float("nan"), float("nan")
    chosen = np.random.default_rng(0).permutation(usable)[:num_points]
    vectors = _rows_of(parts, chosen)
    unit = vectors.astype(np.float64) / norms[chosen, None]
    pair = np.triu_indices(len(chosen), 1)
    cosine = np.clip(unit @ unit.T, -1, 1)[pair]

    points = jnp.asarray(padded_rows(vectors.astype(np.float32)))
    codes = lsh.project_bits(points, key, num_bits)
    estimate = graph.cosine_from_hamming(hamming.distances(codes, codes), num_bits)
    measured = np.sqrt(np.mean((np.asarray(estimate, np.float64)[pair] - cosine) ** 2))

    p = np.arccos(cosine) / np.pi
    once, twice = (
        ((1 - p + p * np.exp(1j * u / num_bits)) ** num_bits).real for u in (np.pi, 2 * np.pi)
    )
    theory = np.sqrt(np.mean((1 + twice) / 2 - 2 * cosine * once + cosine**2))
    return float(measured), float(theory)


def _norms(part: np.ndarray) -> np.ndarray:
    """Norms of rows [n, d], a few rows at a time: the squares of all would need a second copy."""
    starts = range(0, max(len(part), 1), _ROWS_AT_ONCE)
    return np.concatenate(
        [np.linalg.norm(part[start : start + _ROWS_AT_ONCE], axis=1) for start in starts]
    )


def _rows_of(parts: Sequence[np.ndarray], chosen: np.ndarray) -> np.ndarray:
    firsts = np.cumsum([0, *map(len, parts)])
    whose = np.searchsorted(firsts, chosen, side="right") - 1
    return np.stack(
        [parts[part][row - firsts[part]] for part, row in zip(whose, chosen, strict=True)]
    )
