"""The XOR mechanism on labels of public examples, with independent flips (DP-FedCT, Section 4, Corollary 1).

A client releases M = F xor B, F its labels as one-hot rows {0, 1}^[U, C], B random bits. Ji et al. (PVLDB
14(5), 2021) draw B with P(B) ~ exp(tr(B Theta B^T) + ...); for Theta = theta I and nothing else, which is
how their sampler is used, bits are independent:

    P(B_uc = 1) = p = 1 / (1 + e^|theta|) < 1 / 2,           |theta| = log((1 - p) / p)

With theta > 0, as in their sampler, p is above 1/2: the same guarantee, with all bits inverted.

FedCT's released code is not this mechanism. Its reference matrix Theta~ is the client's own matrix of
predictions, scaled to epsilon Theta~ / (3000 |Theta~|_F), from which each bit's probability follows. So p is
below 1/2 and depends on the private labels. The theorem requires a Theta that does not depend on them: what
that code releases has no epsilon at all. Here p depends on epsilon, s and C alone.

Its guarantee if two neighboring data sets give F that differ in at most s BITS (a changed label changes two:
s = 2 r for r labels, s = 2 |U| if nothing is known):

    exact    eps = s |theta|              p = 1 / (1 + e^(eps / s))
    paper    eps = s sqrt(C) |theta|      p = 1 / (1 + e^(eps / (s sqrt(C))))       (Eq. 2, |lambda(Theta)|_2)

The likelihood ratio is a product over the s bits, so "exact" is attained and no smaller eps holds;
"paper" is sufficient and sqrt(C) too large. The paper's trivial bound |U| would be 2 |U| by its own
definition of s. Every communication is a separate release (`jaxfed.privacy.composition`).

Utility. For B_uc = sum_k M^(k)_uc over K clients,

    E[B_uc] = K p + (1 - 2 p) n_uc,    n_hat_uc = (B_uc - K p) / (1 - 2 p),    Var = K p (1 - p) / (1 - 2 p)^2

with n_uc the number of clients with label c. A consensus of B and one of n_hat have the same winner. The
authors' code takes the first largest entry of each client's row as its vote, which loses more and is biased
toward small classes. docs/threat-model.md has both measured, and randomized response on whole labels.

Sensitivity of the labels to one private example: bounds, and an estimate without guarantee. A client predicts
U by h_D trained on D; neighbors D, D' differ in one example. Here r counts LABELS,

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
from typing import Literal

import numpy as np

from jaxfed.privacy import randomized_response as rr

Condition = Literal["exact", "paper"]


def flip_probability(
    epsilon: float, sensitivity: int, num_classes: int, condition: Condition = "exact"
) -> float:
    """p of bits that differ in at most `sensitivity` entries between neighbors."""
    return rr.flip_probability(_bit_epsilon(epsilon, sensitivity, num_classes, condition))


def _bit_epsilon(epsilon: float, sensitivity: int, num_classes: int, condition: Condition) -> float:
    """|theta|: the budget of one of `sensitivity` bits, 1 or more."""
    norm = {"exact": 1.0, "paper": math.sqrt(num_classes)}[condition]
    return epsilon / (sensitivity * norm)


def one_hot(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """F, bool [U, C] of labels int [U]; a row of zeros for -1."""
    return np.asarray(labels)[:, None] == np.arange(num_classes)


def release(
    marks: np.ndarray,
    epsilon: float,
    sensitivity: int,
    draw: rr.DrawUniform = rr.from_system,
    *,
    condition: Condition = "exact",
) -> np.ndarray:
    """M = F xor B, bool [U, C], of marks F; p is rounded up to a multiple of 2^-32.

    B comes from the operating system, or in experiments from `randomized_response.from_key`. Raises a
    UsageError for an epsilon that is not positive and finite.
    """
    bit_epsilon = _bit_epsilon(epsilon, sensitivity, marks.shape[1], condition)
    return rr.randomize_marks(marks, draw, bit_epsilon)


def unbiased_counts(sums: np.ndarray, num_clients: int, flip_probability: float) -> np.ndarray:
    """n_hat, float64 [U, C], from summed bits B, integers [U, C], over `num_clients` clients."""
    return (np.asarray(sums) - num_clients * flip_probability) / (1 - 2 * flip_probability)


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
    for index, row in enumerate(chosen):
        neighbor = x.copy(), y.copy()
        for values, replacements in zip(neighbor, spare, strict=True):
            values[row] = replacements[index]
        changes[index] = np.sum(np.asarray(fit_predict(*neighbor)) != labels)
    return changes
