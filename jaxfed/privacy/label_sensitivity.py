"""Sensitivity of labels of public examples to one private example: bounds, and an estimate without guarantee.

A client predicts U by h_D trained on D; neighbors D, D' differ in one example. Here r counts LABELS,

    r = sup over D ~ D' of #{u : h_D(u) != h_D'(u)},    s = |F(D) xor F(D')|_F^2 = 2 r bits of one-hot rows

r <= |U| is the only bound that holds for every learner and every data set. (The paper's
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

`estimate` does what the paper's experiments do: it trains on D and on neighbors drawn at random. The next
neighbor may change more than all of them. An epsilon computed from it is not a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

FitPredict = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (x, y of D) -> labels int [U] of U

BITS_A_ROW = 2  # of one-hot rows: the old label's and the new one's


def stability_bound(num_public: int, rate: float, delta: float) -> int:
    """r by Proposition 2 with |U|, the rate e in [0, 1] and delta up to 1/2; never above |U|."""
    # Imported here, as in `jaxfed.privacy.composition`.
    from scipy.special import ndtri

    quantile, mean = -float(ndtri(delta)), num_public * rate
    bound = mean + quantile * math.sqrt(mean * (1 - rate)) + quantile**2 / 3
    return min(math.ceil(bound), num_public)


def estimate(
    fit_predict: FitPredict,
    x: np.ndarray,
    y: np.ndarray,
    spare: tuple[np.ndarray, np.ndarray],
    *,
    seed: int,
) -> np.ndarray:
    """Train on D and on neighbors of it, and count the labels that change, int64 [n]; not a bound.

    Args:
        fit_predict: trains on (x, y) and labels U. It must be deterministic, as changes by its own
            randomness would be counted too.
        x: of D, two or more examples.
        y: of D.
        spare: (x', y') of n examples; each replaces one of D, a different one as long as possible.
        seed: of the choice of the replaced ones.

    Cost: n + 1 trainings.
    """
    number = len(spare[0])
    rng = np.random.default_rng(seed)
    turns = -(-number // len(x))
    chosen = np.concatenate([rng.permutation(len(x)) for _ in range(turns)])[:number]
    labels = np.asarray(fit_predict(x, y))
    changes = np.zeros(number, np.int64)
    for place, row in enumerate(chosen):
        neighbor = x.copy(), y.copy()
        for own, others in zip(neighbor, spare, strict=True):
            own[row] = others[place]
        changes[place] = np.sum(np.asarray(fit_predict(*neighbor)) != labels)
    return changes
