"""Membership inference without other models: by correct predictions, losses or gradients of the model alone.

Gap (Yeom et al., CSF 2018; the baseline of Choquette-Choo et al., ICML 2021) needs labels alone:

    score(x) = 1[f(x) = y],     AUC = 1/2 + (accuracy on members - accuracy on others) / 2      exactly

It measures the leakage of a client that shares hard labels of examples, for any learner.

Loss threshold (Yeom, Giacomelli, Fredrikson, Jha, CSF 2018): members are fitted better.

    score(x) = -loss(f(x), y),     member where loss <= threshold

There is one threshold for all examples; the authors use the mean training loss. An example that is hard for
every model looks like a non-member; `reference_models` and `rmia` correct this.

Population (attack P of Ye, Maddi, Murakonda, Bindschaedler, Shokri, CCS 2022): the same scores, converted to
ranks in a population Z of non-members.

    score(x) = share of Z with loss(z) > loss(x),    ties half
    member where score >= 1 - alpha, that is where the loss is below the alpha-quantile of Z's: FPR alpha

The curve is that of the loss threshold, up to examples between which no z lies. The gain is a threshold with
a known false positive rate.

Gradient norm, with white-box access: training on x makes the gradient at x small.

    score(x) = -|grad_w loss(f_w(x), y)|

(After Nasr, Shokri, Houmansadr, S&P 2019, whose attack learns from gradients of all layers; this one uses
their norm.) Any party with the parameters can compute it: the server and the other clients if models are
averaged, no other party if labels are shared. Norms are inputs; the learner computes them.
"""

from __future__ import annotations

import numpy as np

from jaxfed.errors import UsageError


def gap_scores(predicted: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return 0 or 1, float64, from predicted labels [n] or [S, n] and the true ones [n]."""
    return (np.asarray(predicted) == np.asarray(label)).astype(np.float64)


def gap_auc(accuracy_on_members: float, accuracy_on_others: float) -> float:
    """Return the AUC of the gap attack."""
    return 0.5 + (accuracy_on_members - accuracy_on_others) / 2


def loss_scores(loss: np.ndarray) -> np.ndarray:
    """Return scores, float64, from losses [n] or [S, n]."""
    return -np.asarray(loss, np.float64)


def population_scores(loss: np.ndarray, population_loss: np.ndarray) -> np.ndarray:
    """Shares of the population with a larger loss, float64.

    Args:
        loss: [n] or [S, n], of S models.
        population_loss: [m] or [S, m], of the same models.

    Raises:
        UsageError: no population, or another number of models.

    Cost: S (n + m) log m.
    """
    own, others = (np.asarray(each, np.float64) for each in (loss, population_loss))
    if not others.size or own.shape[:-1] != others.shape[:-1]:
        raise UsageError(
            f"losses {list(own.shape)}, of a population {list(others.shape)}: use [n] and [m], or "
            "[S, n] and [S, m], m >= 1"
        )
    shares = []
    for values, ordered in zip(
        np.atleast_2d(own), np.sort(np.atleast_2d(others), axis=-1), strict=True
    ):
        below = np.searchsorted(ordered, values, side="left")
        not_above = np.searchsorted(ordered, values, side="right")
        shares.append(1 - (below + not_above) / 2 / len(ordered))
    return np.reshape(shares, own.shape)


def gradient_norm_scores(norms: np.ndarray) -> np.ndarray:
    """Scores, float64, from norms [n] or [S, n], of S models or rounds.

    Raises:
        UsageError: a norm below 0.
    """
    values = np.asarray(norms, np.float64)
    if (values < 0).any():
        raise UsageError("norms: one is below 0")
    return -values
