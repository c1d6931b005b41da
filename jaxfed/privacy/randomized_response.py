"""Randomized response on LSH bits and on labels, and estimates that undo its bias.

Local mechanisms (Warner, JASA 1965): a client randomizes what it holds before any protocol starts, so
that they go with every backend of XCLP, plaintext or secure, and hold against everybody, the server
and the other clients together.

Bits. Each bit of a code is flipped with probability q = 1 / (1 + e^eps). Between two randomized codes
a differing bit is seen as differing with probability 1 - s, an equal one with probability s = 2 q (1 - q):

    E[h'] = L s + (1 - 2 s) h,      h_hat = (h' - L s) / (1 - 2 s),      E[h_hat] = h,
    Var[h_hat] = L s (1 - s) / (1 - 2 s)^2

What it protects is a BIT: eps per bit. A record changes up to L bits at once, so its own guarantee is
only L eps (pure), or L eps^2 / 2 in zero-concentrated form (Bun, Steinke, TCC 2016), thousands for the
eps that leave XCLP useful. Between two vectors at angle theta it is eps L theta / pi in expectation:
metric privacy, close vectors are hard to tell apart, distant ones are not. Do not call it record-level
differential privacy.

Labels. Of C classes the true one is kept with p_1 = e^eps / (e^eps + C - 1), any other given with
p_0 = 1 / (e^eps + C - 1). The matrix with entries (1[y' = c] - p_0) / (p_1 - p_0) has the true one-hot
matrix as its mean, and label propagation is linear in it, so that Z stays unbiased. This IS eps-label
differential privacy of every record: of the label's value, not of whether there is one, nor of the
vector.

Budgets add up over repetitions with fresh noise: R rounds cost R eps. Whoever propagates the same
labels again should keep the first answers (call `randomize_labels` once) and pay once.

The noise here comes from a JAX key, which makes experiments repeatable; a deployment must draw from
the operating system's generator.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfed.errors import UsageError
from jaxfed.kernels import lsh

_BLOCK = 256  # codes randomized at a time: 32 L bytes of random numbers each


class BitBudget(NamedTuple):
    """What one release of randomized codes costs, from the weakest claim to the strongest.

    Fields:
        bit: eps of a single bit.
        record_zcdp: rho = L eps^2 / 2 of a whole code.
        record_approximate: eps of a whole code at the given delta, rho + 2 sqrt(rho ln(1 / delta)), or
            the pure one where that is smaller.
        record_pure: L eps of a whole code, delta = 0.
    """

    bit: float
    record_zcdp: float
    record_approximate: float
    record_pure: float


def bit_budget(epsilon: float, num_bits: int, delta: float) -> BitBudget:
    """The budget of codes of `num_bits` bits, each randomized at `epsilon`.

    Raises:
        UsageError: `epsilon` is not positive, or `delta` is not strictly between 0 and 1.
    """
    _check_epsilon(epsilon)
    if not 0 < delta < 1:
        raise UsageError(f"delta={delta}: allowed are numbers strictly between 0 and 1")
    pure = num_bits * epsilon
    rho = num_bits * epsilon**2 / 2
    approximate = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return BitBudget(epsilon, rho, min(approximate, pure), pure)


def flip_probability(epsilon: float) -> float:
    """q = 1 / (1 + e^eps), below 1/2.

    Raises:
        UsageError: `epsilon` is not a positive finite number.
    """
    _check_epsilon(epsilon)
    return math.exp(-epsilon) / (1 + math.exp(-epsilon))


def randomize_bits(codes: jax.Array, key: jax.Array, epsilon: float) -> jax.Array:
    """Flip every bit of packed codes with probability q, independently.

    q is rounded up to a multiple of 2^-32, so that it promises no more than it keeps.

    Args:
        codes: uint32 [n, L / 32].
        key: a typed key.
        epsilon: per bit, positive.

    Returns:
        uint32 [n, L / 32].
    """
    threshold = math.ceil(flip_probability(epsilon) * 2**32)
    return _flipped(codes, key, jnp.uint32(threshold))


@jax.jit
def _flipped(codes: jax.Array, key: jax.Array, threshold: jax.Array) -> jax.Array:
    num_words = codes.shape[1]

    def flip(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        number, words = row
        draws = jax.random.bits(jax.random.fold_in(key, number), (num_words, lsh.WORD_BITS))
        return words ^ lsh.pack_bits((draws < threshold).reshape(-1))

    numbers = jnp.arange(len(codes), dtype=jnp.uint32)
    return lax.map(flip, (numbers, codes), batch_size=_BLOCK)


def unbiased_distances(distances: jax.Array, num_bits: int, epsilon: float) -> jax.Array:
    """h_hat, the unbiased estimates of the distances before both codes were randomized.

    Args:
        distances: h' between randomized codes, integers [...].
        num_bits: L.
        epsilon: per bit, as given to `randomize_bits`.

    Returns:
        float32 [...]; below 0 or above L where noise makes it so, as an unbiased estimate must be.
    """
    q = flip_probability(epsilon)
    s = 2 * q * (1 - q)
    return (jnp.asarray(distances).astype(jnp.float32) - num_bits * s) / (1 - 2 * s)


def distance_deviation(num_bits: int, epsilon: float) -> float:
    """Standard deviation of h_hat, sqrt(L s (1 - s)) / (1 - 2 s), whatever h is."""
    q = flip_probability(epsilon)
    s = 2 * q * (1 - q)
    return math.sqrt(num_bits * s * (1 - s)) / (1 - 2 * s)


def answer_probabilities(epsilon: float, num_classes: int) -> tuple[float, float]:
    """(p_1, p_0): of answering the true class, and of answering one certain other class.

    Raises:
        UsageError: `epsilon` is not positive, or there are fewer than two classes to confuse.
    """
    _check_epsilon(epsilon)
    if num_classes < 2:
        raise UsageError(f"num_classes={num_classes}: randomized labels need 2 or more")
    others = math.exp(-epsilon)
    total = 1 + (num_classes - 1) * others
    return 1 / total, others / total


def randomize_labels(
    labels: np.ndarray, key: jax.Array, num_classes: int, epsilon: float
) -> np.ndarray:
    """k-ary randomized response to "which class?"; unlabeled points (-1) stay unlabeled.

    Args:
        labels: int [n], -1 to C - 1.
        key: a typed key.
        num_classes: C.
        epsilon: of a label, positive.

    Returns:
        int32 [n].
    """
    keep, _ = answer_probabilities(epsilon, num_classes)
    return np.asarray(_answers(jnp.asarray(labels, jnp.int32), key, keep, num_classes))


@partial(jax.jit, static_argnames="num_classes")
def _answers(labels: jax.Array, key: jax.Array, keep: jax.Array, num_classes: int) -> jax.Array:
    keep_key, other_key = jax.random.split(key)
    kept = jax.random.uniform(keep_key, labels.shape) < keep
    shift = jax.random.randint(other_key, labels.shape, 1, num_classes)
    answers = jnp.where(kept, labels, (labels + shift) % num_classes)
    return jnp.where(labels >= 0, answers, labels)


def unbiased_one_hot(labels: np.ndarray, num_classes: int, epsilon: float) -> np.ndarray:
    """float32 [n, C]: its mean over `randomize_labels` is the one-hot matrix of the true labels.

    Rows of labeled points sum to 1 and have negative entries; unlabeled points (-1) have zero rows.
    """
    keep, other = answer_probabilities(epsilon, num_classes)
    answered = np.asarray(labels)[:, None] == np.arange(num_classes)
    unbiased = (answered - other) / (keep - other)
    return np.where(np.asarray(labels)[:, None] >= 0, unbiased, 0).astype(np.float32)


def _check_epsilon(epsilon: float) -> None:
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise UsageError(f"epsilon={epsilon}: allowed are finite numbers above 0")
