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

Budgets add up over repetitions with fresh noise (`jaxfed.privacy.composition`): R rounds cost R eps. Whoever
propagates the same labels again should keep the first answers (call `randomize_labels` once) and pay once.

Where the noise comes from is the caller's choice. `from_system`: the operating system's generator, which
nobody else can repeat; XCLP takes it wherever parties have a session. `from_key`: a JAX key, which makes
plaintext simulations repeatable, and whose owner can subtract the noise again; a row has its noise by its
number. `from_content`: as `from_key`, by what a row is, for questions that are asked one after another: by
its number different rows would have the same noise in two calls, and their difference none.

Probabilities are integers over the number of words that may be drawn, rounded up to more noise, so that no
epsilon promises more than it keeps: 2^-32 is the least probability of flipping a bit, 2^-64 that of one
certain wrong class.
"""

from __future__ import annotations

import decimal
import hashlib
import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.kernels import lsh
from jaxfed.privacy import composition

# (rows, words) -> uniform uint32 [rows, words]: what the noise of these rows is made of.
Draw = Callable[[range, int], jax.Array]

_BLOCK = 256  # codes randomized at a time: 4 L bytes of random words each
_MARKS = 1 << 20  # marks randomized at a time, or one row of them: 4 bytes of random words each
_BIT_WORD, _LABEL_WORD = 32, 64  # bits of randomness that a bit's, a label's answer takes


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
    pure = num_bits * epsilon
    rho = composition.zcdp(epsilon, num_bits)
    return BitBudget(epsilon, rho, composition.approximate(epsilon, num_bits, delta), pure)


def flip_probability(epsilon: float) -> float:
    """q = 1 / (1 + e^eps), below 1/2.

    Raises:
        UsageError: `epsilon` is not a positive finite number.
    """
    _check_epsilon(epsilon)
    return math.exp(-epsilon) / (1 + math.exp(-epsilon))


def from_system(rows: range, num_words: int) -> jax.Array:
    """Words of the operating system's generator: fresh in every call."""
    drawn = secrets.token_bytes(4 * len(rows) * num_words)
    return jnp.asarray(np.frombuffer(drawn, np.uint32).reshape(len(rows), num_words))


def from_key(key: jax.Array) -> Draw:
    """Words out of a typed key: a row's are the same in every call, whatever the others."""

    def draw(rows: range, num_words: int) -> jax.Array:
        return _words(key, jnp.arange(rows.start, rows.stop, dtype=jnp.uint32), num_words)

    return draw


def from_content(key: jax.Array, codes: np.ndarray) -> Draw:
    """Words out of a typed key for rows uint32 [n, w]: equal ones have equal words, in any call and place.

    Different ones have independent words, but for digests of 64 bits that collide.
    """
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in np.asarray(codes)]
    numbers = np.array([np.frombuffer(own, "<u4") for own in digests], np.uint32).reshape(-1, 2)

    def draw(rows: range, num_words: int) -> jax.Array:
        own = np.zeros((len(rows), 2), np.uint32)  # a block may end beyond the last row
        known = numbers[rows.start : rows.stop]
        own[: len(known)] = known
        return _words_of(key, jnp.asarray(own), num_words)

    return draw


@partial(jax.jit, static_argnames="num_words")
def _words_of(key: jax.Array, numbers: jax.Array, num_words: int) -> jax.Array:
    def words(own: jax.Array) -> jax.Array:
        return jax.random.bits(
            jax.random.fold_in(jax.random.fold_in(key, own[0]), own[1]), (num_words,)
        )

    return jax.vmap(words)(numbers)


@partial(jax.jit, static_argnames="num_words")
def _words(key: jax.Array, rows: jax.Array, num_words: int) -> jax.Array:
    return jax.vmap(lambda row: jax.random.bits(jax.random.fold_in(key, row), (num_words,)))(rows)


def threshold(epsilon: float, num_classes: int, word_bits: int) -> int:
    """ceil(2^w p_0): so many of 2^w words answer with one certain other class. At least 1.

    In exact arithmetic: float32 rounds p_1 to 1, which is no noise at all, from epsilon = 17 on.
    """
    answer_probabilities(epsilon, num_classes)  # refuses what is no epsilon
    with decimal.localcontext(prec=50):
        others = (-decimal.Decimal(epsilon)).exp()
        scaled = 2**word_bits * others / (1 + (num_classes - 1) * others)
        return max(1, math.ceil(scaled))


def randomize_bits(codes: jax.Array, draw: Draw, epsilon: float) -> jax.Array:
    """Flip every bit of packed codes with probability q, independently.

    Args:
        codes: uint32 [n, L / 32].
        draw: where the noise comes from.
        epsilon: per bit, positive.

    Returns:
        uint32 [n, L / 32].

    Cost: L words a code.
    """
    num_bits = lsh.WORD_BITS * codes.shape[1]
    limit = jnp.uint32(threshold(epsilon, 2, _BIT_WORD))
    flips = [
        _flips(draw(range(start, start + _BLOCK), num_bits), limit)
        for start in range(0, len(codes), _BLOCK)
    ]
    return (
        codes ^ jnp.concatenate([jnp.zeros((0, codes.shape[1]), jnp.uint32), *flips])[: len(codes)]
    )


@jax.jit
def _flips(words: jax.Array, limit: jax.Array) -> jax.Array:
    return lsh.pack_bits(words < limit)


def randomize_marks(marks: np.ndarray, draw: Draw, epsilon: float) -> np.ndarray:
    """Flip every mark with probability q, independently: as `randomize_bits`, of bits that are not packed.

    Args:
        marks: bool [n, m].
        draw: where the noise comes from.
        epsilon: per mark, positive.

    Returns:
        bool [n, m].

    Cost: a word a mark.
    """
    limit = np.uint32(threshold(epsilon, 2, _BIT_WORD))
    block = max(1, _MARKS // max(1, marks.shape[1]))
    released = np.array(marks, bool)
    for start in range(0, len(marks), block):
        rows = range(start, min(start + block, len(marks)))
        released[start : rows.stop] ^= np.asarray(draw(rows, marks.shape[1])) < limit
    return released


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
    labels: np.ndarray, draw: Draw, num_classes: int, epsilon: float
) -> np.ndarray:
    """k-ary randomized response to "which class?"; unlabeled points (-1) stay unlabeled.

    One word of 64 bits decides both whether the class is kept and which other one takes its place.

    Args:
        labels: int [n], -1 to C - 1.
        draw: where the noise comes from.
        num_classes: C.
        epsilon: of a label, positive.

    Returns:
        int32 [n].
    """
    words = np.ascontiguousarray(draw(range(len(labels)), 2)).view(np.uint64)[:, 0]
    return answers(labels, words, num_classes, epsilon)


def answers(labels: np.ndarray, words: np.ndarray, num_classes: int, epsilon: float) -> np.ndarray:
    """What each of 2^64 words answers: the first t of them the first other class, the next t the second ...

    int32 [n] of labels int [n] and words uint64 [n]; t = `threshold(epsilon, C, 64)`.
    """
    number = words // np.uint64(threshold(epsilon, num_classes, _LABEL_WORD))
    others = np.minimum(number, np.uint64(num_classes)).astype(np.int32)
    others += others >= labels  # the own class is not among the others
    is_other = (number < num_classes - 1) & (np.asarray(labels) >= 0)
    return np.where(is_other, others, labels).astype(np.int32)


def unbiased(answered: np.ndarray, num_classes: int, epsilon: float) -> np.ndarray:
    """(A - p_0 A 1 1^T) / (p_1 - p_0): its mean over `randomize_labels` is what true labels would give.

    Args:
        answered: A, real [..., C], anything linear in the answers' one-hot rows: these themselves (unlabeled
            points have zero rows), their sums over points, or S times them.
        num_classes: C.
        epsilon: of a label, as given to `randomize_labels`.

    Returns:
        The shape of A. Rows keep their sum and may have negative entries.
    """
    keep, other = answer_probabilities(epsilon, num_classes)
    return (answered - other * answered.sum(axis=-1, keepdims=True)) / (keep - other)


def _check_epsilon(epsilon: float) -> None:
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise UsageError(f"epsilon={epsilon}: allowed are finite numbers above 0")
