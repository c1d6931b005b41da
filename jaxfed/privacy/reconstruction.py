"""Reconstruction from Hamming distances: attack by a server that colludes with one client of XCLP.

The server has H (XCLP, Algorithm 1, line 5), the client its own vectors a_1 ... a_m. For another client's
vector v, the two together know

    c_i = cos(pi h_i / L),     h_i the distance of v's code to that of a_i,     E[c_i] ~ <a_i, v> / |a_i| |v|

m noisy linear measurements of the direction v / |v|. Let A have the rows a_i / |a_i|. For a uniform prior on
the direction and independent errors of variance pi^2 / (4 L), the best linear estimate is

    v_hat = (A^T A + d pi^2 / (4 L) I)^-1 A^T c.

No protocol prevents this, as each gives H to the server. Mitigations are randomized response on the bits
(`jaxfed.privacy.randomized_response`), fewer bits, and clients with far fewer points than d. m < d alone is
no protection: m measurements determine the part of v in the span of the a_i.

For comparison, `directions_from_codes` is the simplest estimate from plaintext codes with known Pi. As
distances are functions of the codes, it is the limit for large m. With one-message distances (`masked`) a
server that colludes with a client gets the codes themselves.
"""

from __future__ import annotations

import numpy as np

from jaxfed.errors import UsageError


def directions_from_distances(
    known: np.ndarray, distances: np.ndarray, num_bits: int
) -> np.ndarray:
    """Estimate unit vectors from distances to known vectors.

    Args:
        known: a_i, real [m, d].
        distances: h, real [n, m]: from every attacked point to every known one. For randomized codes: the
            unbiased estimates.
        num_bits: L.

    Returns:
        float64 [n, d], each of length 1, or 0 without information.

    Raises:
        UsageError: shapes that do not fit together, or no bits.

    Cost: with r = min(m, d), about m d r + r^3 + n m d operations.
    """
    if num_bits < 1:
        raise UsageError(f"num_bits={num_bits}: use 1 or more")
    if known.ndim != 2 or distances.ndim != 2 or distances.shape[1] != len(known):
        raise UsageError(
            f"reconstruction: known vectors {list(known.shape)} and distances "
            f"{list(distances.shape)}: use [m, d] and [n, m]"
        )
    rows = _unit_rows(known)
    cosines = np.cos(np.pi / num_bits * np.clip(distances, 0, num_bits))
    num_known, dim = rows.shape
    ridge = dim * np.pi**2 / (4 * num_bits)
    if num_known < dim:
        fitted = np.linalg.solve(rows @ rows.T + ridge * np.eye(num_known), cosines.T)
        return _unit_rows(fitted.T @ rows)
    fitted = np.linalg.solve(rows.T @ rows + ridge * np.eye(dim), rows.T @ cosines.T)
    return _unit_rows(fitted.T)


def directions_from_codes(bits: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """Estimate unit vectors from codes with known hyperplanes: sum_l (2 b_l - 1) u_l, normalized.

    Args:
        bits: 0 or 1, [n, L].
        planes: Pi, real [L, d].

    Returns:
        float64 [n, d]. Their cosine with the true directions is about (1 + pi d / (2 L))^-1/2.
    """
    return _unit_rows((2 * bits.astype(np.float64) - 1) @ planes)


def recovery(directions: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Cosines of recovered directions with the true vectors, float64 [n]: 1 = found, 0 = a guess."""
    return np.sum(directions * _unit_rows(vectors), axis=1)


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
