"""Evidence of membership: log-odds of an example's class, and the reference models that count for an example.

    phi = log p / (1 - p) = z_y - log sum_{c != y} exp z_c          p = p_y(x), logits z

phi is nearly normal over models, unlike p (Carlini et al., S&P 2022). Computed from logits it keeps its
precision where p rounds to 1.

Besides the target model there may be R reference models, [R, n]. Each was trained on some of the examples
(`is_in`) and not on others.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from jaxfed.errors import UsageError


def log_odds_of_logits(logits: np.ndarray, label: np.ndarray) -> np.ndarray:
    """phi of logits [..., n, C] with labels int [n], float64 [..., n]."""
    z = np.asarray(logits, np.float64)
    is_own = np.arange(z.shape[-1]) == np.asarray(label)[:, None]
    index = np.broadcast_to(np.asarray(label)[:, None], (*z.shape[:-1], 1))
    of_label = np.take_along_axis(z, index, axis=-1)[..., 0]
    return of_label - logsumexp(np.where(is_own, -np.inf, z), axis=-1)


def outside(reference: np.ndarray, is_in: np.ndarray | None) -> np.ndarray:
    """True for references that were not trained on the example, bool [R, n]; all True without `is_in`.

    Raises:
        UsageError: shapes that do not fit, or an example that every reference was trained on.
    """
    is_out = ~np.asarray(np.zeros(np.shape(reference)) if is_in is None else is_in, bool)
    return _checked(reference, is_out, "trained without")


def inside(reference: np.ndarray, is_in: np.ndarray) -> np.ndarray:
    """True for references that were trained on the example, bool [R, n].

    Raises:
        UsageError: shapes that do not fit, or an example that no reference was trained on.
    """
    return _checked(reference, np.asarray(is_in, bool), "trained on")


def mean_over(reference: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Mean over the references in use, float64 [n] from [R, n] and bool [R, n]."""
    return np.mean(np.asarray(reference, np.float64), axis=0, where=used)


def _checked(reference: np.ndarray, used: np.ndarray, what: str) -> np.ndarray:
    if np.ndim(reference) != 2 or used.shape != np.shape(reference):
        raise UsageError(
            f"references {list(np.shape(reference))} and their members {list(used.shape)}: use "
            "[R, n] twice"
        )
    missing = ~used.any(axis=0)
    if missing.any():
        raise UsageError(
            f"example {int(np.argmax(missing))}: no reference model was {what} it; use one or more"
        )
    return used
