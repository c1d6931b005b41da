"""Sensitivity of labels of public examples to one private example: bounds, and an estimate without guarantee.

A client predicts U by h_D trained on D; neighbors D, D' differ in one example. Here r counts LABELS,

    r = sup over D ~ D' of #{u : h_D(u) != h_D'(u)},    s = |F(D) xor F(D')|_F^2 = 2 r bits of one-hot rows

`trivial_rows`: r <= |U|, the only bound that holds for every learner and every data set. (The paper's
"s = |U|" counts labels; its definition of s counts bits.)

`stability_bound` (FedCT, Proposition 2): with probability at least 1 - delta over the data,

    r <= ceil( n e + P sqrt(n e (1 - e)) + P^2 / 3 ),      n = |U|,  P = Phi^-1(1 - delta),  e the rate

by Short's bound of the binomial quantile (Communications in Statistics 52(12), 2023; for delta up to 1/2).
It assumes more than the paper states:

  * e must be the probability that the label of one public example changes. The paper uses
    on-average-replace-one stability instead, the mean SIGNED change of the loss at the replaced example:
    rising and falling losses cancel, and a change from one wrong class to another leaves the 0-1 loss.
  * Labels must change independently of each other. A single other split of a tree changes many at once.
  * It is a quantile over random neighbors, not the supremum that pure differential privacy requires: with
    probability delta more labels change, and for a chosen data set nothing holds.

`estimate` does what the paper's experiments do: it trains on D and on neighbors drawn at random, and takes
the largest difference. The next neighbor may change more. An epsilon computed from it is not a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxfed.errors import UsageError

FitPredict = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (x, y of D) -> labels int [U] of U

BITS_A_ROW = 2  # of one-hot rows: the old label's and the new one's


def trivial_rows(num_public: int) -> int:
    """r <= |U|."""
    if num_public < 1:
        raise UsageError(f"num_public={num_public}: use integers from 1 on")
    return num_public


def stability_bound(num_public: int, rate: float, delta: float) -> int:
    """r by Proposition 2, of a learner with this rate; never above |U|.

    Args:
        num_public: |U|.
        rate: e, in [0, 1].
        delta: its probability of failure.

    Raises:
        UsageError: no examples, a rate outside of [0, 1], or delta outside of (0, 1/2].
    """
    # Imported here, as in `jaxfed.privacy.gaussian`.
    from scipy.special import ndtri

    if not 0 <= rate <= 1 or not 0 < delta <= 0.5:
        raise UsageError(f"rate={rate}, delta={delta}: use [0, 1] and (0, 1/2]")
    quantile, mean = -float(ndtri(delta)), num_public * rate
    bound = mean + quantile * math.sqrt(mean * (1 - rate)) + quantile**2 / 3
    return min(math.ceil(bound), trivial_rows(num_public))


class SensitivityEstimate(NamedTuple):
    """Label changes among sampled neighbors; not a bound.

    Fields:
        changes: int64 [n], number of labels that differ from those of D, per neighbor.
        rows: the largest of them.
        bits: the same in bits of one-hot rows, 2 * rows.
        rate: the mean share of U that changed, a possible input of `stability_bound`.
    """

    changes: np.ndarray
    rows: int
    bits: int
    rate: float


def estimate(
    fit_predict: FitPredict,
    x: np.ndarray,
    y: np.ndarray,
    *,
    num_neighbors: int = 100,
    seed: int = 0,
    spare: tuple[np.ndarray, np.ndarray] | None = None,
) -> SensitivityEstimate:
    """Train on D and on neighbors of it, and count the labels that change.

    Args:
        fit_predict: trains on (x, y) and labels U. It must be deterministic, as changes by its own
            randomness would be counted too.
        x: of D, [n, ...].
        y: of D, [n].
        num_neighbors: number of neighbors; each removes or replaces a different example as long as possible.
        seed: of their choice.
        spare: (x', y'), examples that replace removed ones, one after another; without them neighbors are
            smaller by one.

    Raises:
        UsageError: fewer than two examples, no neighbors, or empty `spare`.

    Cost: `num_neighbors` + 1 trainings.
    """
    if len(x) < 2 or len(x) != len(y) or num_neighbors < 1 or (spare and not len(spare[0])):
        raise UsageError(
            f"{len(x)} examples, {len(y)} labels, num_neighbors={num_neighbors}: use 2 or more of "
            "each, 1 neighbor or more, and spare examples that are there"
        )
    rng = np.random.default_rng(seed)
    turns = -(-num_neighbors // len(x))
    chosen = np.concatenate([rng.permutation(len(x)) for _ in range(turns)])[:num_neighbors]
    labels = np.asarray(fit_predict(x, y))
    changes = np.zeros(num_neighbors, np.int64)
    for number, row in enumerate(chosen):
        if spare is None:
            neighbor = np.delete(x, row, axis=0), np.delete(y, row, axis=0)
        else:
            neighbor = x.copy(), y.copy()
            for own, others in zip(neighbor, spare, strict=True):
                own[row] = others[number % len(others)]
        changes[number] = np.sum(np.asarray(fit_predict(*neighbor)) != labels)
    rows = int(changes.max())
    return SensitivityEstimate(
        changes, rows, BITS_A_ROW * rows, float(changes.mean() / len(labels))
    )
