"""Attacks by reference models: difficulty, share of references, and LiRA. `rmia` is another.

Besides the target model there are R reference models, with values [R, n] on n examples. Each was trained on
some of the examples (`is_in`) and not on others. An example that is easy for all models is no evidence.

    difficulty    score(x) = mean over references not trained on x of loss_ref(x)  -  loss(x)
    reference     score(x) = share of the references not trained on x whose loss on x is larger,   ties half

Difficulty calibration is by Watson, Guo, Cormode, Sablayrolles, ICLR 2022; reference is attack R of Ye et
al., CCS 2022. The loss is arbitrary; with 1[f(x) != y], for label-only models, a correct answer counts more
the rarer it is. With R references there are at most 2 R + 1 distinct reference scores.

LiRA, the likelihood ratio attack (Carlini, Chien, Nasr, Song, Terzis, Tramer, S&P 2022), has log-odds of an
example's class,

    phi = log p / (1 - p) = z_y - log sum_{c != y} exp z_c          p = p_y(x), logits z

which are nearly normal over models, unlike p. Computed from logits they keep their precision where p rounds
to 1. They are modeled as normal over models, separately for training with and without x:

    online     score(x) = log N(phi; mu_in, sd_in) - log N(phi; mu_out, sd_out)
    offline    score(x) = (phi - mu_out) / sd_out

"online" is the likelihood ratio (the paper's Lambda). "offline" is a one-sided test that needs no model
trained on x. It uses the number of deviations in place of P(Z < phi), Z ~ N(mu_out, sd_out): the order is the
same, without saturation at 1. Means are per example, over the reference models of each kind. The deviation is
one for all examples, of values about their example's mean: better with few references (below 64 according to
the paper) than a deviation per example. (The authors' code takes the deviation of all values about a single
mean, so the spread between examples widens both normals.)

Offline, x above all references is a member. If the target is less confident than references that never saw
x, the score must be low, so a two-sided test would be wrong.

Functions take the target's values [n] or [S, n], those of R references [R, n], and bool [R, n], True if the
reference was trained on the example (None: all False). They return float64 of the shape of the target's, and
raise a `UsageError` for shapes that do not fit, or an example without references of a kind.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from jaxfed.errors import UsageError

_LEAST = 1e-12  # smallest deviation, for identical references


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


def difficulty_scores(
    loss: np.ndarray, reference_loss: np.ndarray, is_in: np.ndarray | None = None
) -> np.ndarray:
    """Mean loss of the references minus the target's."""
    expected = mean_over(reference_loss, outside(reference_loss, is_in))
    return expected - np.asarray(loss, np.float64)


def reference_scores(
    loss: np.ndarray, reference_loss: np.ndarray, is_in: np.ndarray | None = None
) -> np.ndarray:
    """Share of references with a larger loss; S R n comparisons."""
    own, others = np.asarray(loss, np.float64), np.asarray(reference_loss, np.float64)
    is_out = outside(others, is_in)
    rows = [mean_over((others > row) + (others == row) / 2, is_out) for row in np.atleast_2d(own)]
    return np.reshape(rows, own.shape)


def lira_offline(
    phi: np.ndarray, reference_phi: np.ndarray, is_in: np.ndarray | None = None
) -> np.ndarray:
    """Deviations of the target's log-odds above the mean of references not trained on the example."""
    mean, deviation = _normal(reference_phi, outside(reference_phi, is_in))
    return (np.asarray(phi, np.float64) - mean) / deviation


def lira_online(phi: np.ndarray, reference_phi: np.ndarray, is_in: np.ndarray) -> np.ndarray:
    """Log-likelihood ratio of the target's log-odds by references of both kinds."""
    values = np.asarray(phi, np.float64)
    with_it = _normal(reference_phi, inside(reference_phi, is_in))
    without = _normal(reference_phi, outside(reference_phi, is_in))
    return norm.logpdf(values, *with_it) - norm.logpdf(values, *without)


def _normal(reference: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, float]:
    """Mean of each example, float64 [n], and the deviation of all."""
    values = np.asarray(reference, np.float64)
    mean, count = mean_over(values, used), used.sum(axis=0)
    freedom = np.sum(count - 1)  # each example's mean takes one degree of freedom
    if freedom < 1:
        raise UsageError("every example has 1 reference of a kind; use 2 or more for some")
    squares = np.sum(np.square(values - mean), axis=0, where=used)
    return mean, max(float(np.sqrt(squares.sum() / freedom)), _LEAST)
