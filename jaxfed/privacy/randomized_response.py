"""Randomized response on LSH bits and on labels, and estimates that undo its bias.

Local mechanisms (Warner, JASA 1965): a client randomizes its data before any protocol starts. So they
combine with every backend of XCLP, plaintext or secure, and hold against all other parties, also against
the server and the other clients together.

Bits. Each bit of a code is flipped with probability q = 1 / (1 + e^eps). Between two randomized codes
a differing bit is seen as differing with probability 1 - s, an equal one with probability s = 2 q (1 - q):

    E[h'] = L s + (1 - 2 s) h,      h_hat = (h' - L s) / (1 - 2 s),      E[h_hat] = h,
    Var[h_hat] = L s (1 - s) / (1 - 2 s)^2

The guarantee is for a BIT: eps per bit. A record changes up to L bits at once, so a record's guarantee is
only L eps (pure), or L eps^2 / 2 in zero-concentrated form (Bun, Steinke, TCC 2016). This is thousands for
values of eps that leave XCLP useful. Between two vectors at angle theta it is eps L theta / pi in
expectation, a form of metric privacy: close vectors are hard to distinguish, distant ones are not. Do not
call it record-level differential privacy.

Labels. The true one of C classes is kept with p_1 = e^eps / (e^eps + C - 1), any other given with
p_0 = 1 / (e^eps + C - 1). The matrix with entries (1[y' = c] - p_0) / (p_1 - p_0) has the true one-hot
matrix as its mean, and label propagation is linear in it, so Z stays unbiased. This IS eps-label
differential privacy of every record. It protects the label's value, not its presence, and not the vector.
Where neighboring data sets give labels that differ in at most r entries (FedCT's labels of public examples),
labels at eps / r each are eps-private: the likelihood ratio is a product over these entries, and is attained.

Budgets add up over repetitions with fresh noise (`jaxfed.privacy.composition`): R rounds cost R eps. To
propagate the same labels again, reuse the first answers (call `randomize_labels` once) and pay once.

The caller chooses the source of noise. `from_system`: the operating system's generator, which nobody can
reproduce; XCLP uses it wherever parties have a session. `from_key`: a JAX key, for reproducible plaintext
simulations; its owner can subtract the noise, and a row's noise depends on its number. `from_content`: as
`from_key`, but a row's noise depends on its content, for queries in several calls. By number, different rows
of two calls would have the same noise, and their difference would have none.

Probabilities are integers over the number of words that may be drawn. They are rounded toward more noise, so
the guarantee of epsilon holds. The least probability of flipping a bit is 2^-32, that of a particular wrong
class 2^-64.
"""

from __future__ import annotations

import decimal
import hashlib
import math
import secrets
from collections.abc import Callable
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.kernels import lsh

# (rows, words) -> uniform uint32 [rows, words], the random words for the noise of these rows.
DrawUniform = Callable[[range, int], jax.Array]

_BLOCK = 256  # codes randomized at a time: 4 L bytes of random words each
_MARKS = 1 << 20  # marks randomized at a time, or one row of them: 4 bytes of random words each
_BIT_WORD, _LABEL_WORD = 32, 64  # bits of randomness that a bit's, a label's answer takes


def flip_probability(epsilon: float) -> float:
    """q = 1 / (1 + e^eps), below 1/2.

    Raises:
        UsageError: `epsilon` is not a positive finite number.
    """
    _check_epsilon(epsilon)
    return math.exp(-epsilon) / (1 + math.exp(-epsilon))


def from_system(rows: range, num_words: int) -> jax.Array:
    """Words from the operating system's generator: fresh in every call."""
    drawn = secrets.token_bytes(4 * len(rows) * num_words)
    return jnp.asarray(np.frombuffer(drawn, np.uint32).reshape(len(rows), num_words))


def from_key(key: jax.Array) -> DrawUniform:
    """Words from a typed key: a row's words are the same in every call, independent of other rows."""

    def draw(rows: range, num_words: int) -> jax.Array:
        numbers = jnp.arange(rows.start, rows.stop, dtype=jnp.uint32)
        return _words(key, numbers[:, None], num_words)

    return draw


def from_content(key: jax.Array, codes: np.ndarray) -> DrawUniform:
    """Words from a typed key for rows uint32 [n, w]: equal rows have equal words, in any call, at any index.

    Different rows have independent words, except for collisions of 64-bit digests.
    """
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in np.asarray(codes)]
    numbers = np.frombuffer(b"".join(digests), "<u4").reshape(-1, 2)

    def draw(rows: range, num_words: int) -> jax.Array:
        digests = np.zeros((len(rows), 2), np.uint32)  # a block may end beyond the last row
        known = numbers[rows.start : rows.stop]
        digests[: len(known)] = known
        return _words(key, jnp.asarray(digests), num_words)

    return draw


@partial(jax.jit, static_argnames="num_words")
def _words(key: jax.Array, numbers: jax.Array, num_words: int) -> jax.Array:
    """uint32 [rows, words], of numbers uint32 [rows, k] that are folded into the key one by one."""

    def words(digest: jax.Array) -> jax.Array:
        return jax.random.bits(reduce(jax.random.fold_in, digest, key), (num_words,))

    return jax.vmap(words)(numbers)


def threshold(epsilon: float, num_classes: int, word_bits: int) -> int:
    """ceil(2^w p_0): number of 2^w words that answer with a particular other class. At least 1.

    In exact arithmetic: from epsilon = 17 on, float32 rounds p_1 to 1, without any noise.
    """
    answer_probabilities(epsilon, num_classes)  # refuses an invalid epsilon
    with decimal.localcontext(prec=50):
        others = (-decimal.Decimal(epsilon)).exp()
        scaled = 2**word_bits * others / (1 + (num_classes - 1) * others)
        return max(1, math.ceil(scaled))


def randomize_bits(codes: jax.Array, draw: DrawUniform, epsilon: float) -> jax.Array:
    """Flip every bit of packed codes with probability q, independently.

    Args:
        codes: uint32 [n, L / 32].
        draw: source of the noise.
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
    none = jnp.zeros((0, codes.shape[1]), jnp.uint32)
    return codes ^ jnp.concatenate([none, *flips])[: len(codes)]


@jax.jit
def _flips(words: jax.Array, limit: jax.Array) -> jax.Array:
    return lsh.pack_bits(words < limit)


def randomize_marks(marks: np.ndarray, draw: DrawUniform, epsilon: float) -> np.ndarray:
    """`randomize_bits` for unpacked bits, bool [n, m]. Cost: a word a mark."""
    limit = np.uint32(threshold(epsilon, 2, _BIT_WORD))
    block = max(1, _MARKS // max(1, marks.shape[1]))
    released = np.array(marks, bool)
    for start in range(0, len(marks), block):
        rows = range(start, min(start + block, len(marks)))
        released[start : rows.stop] ^= np.asarray(draw(rows, marks.shape[1])) < limit
    return released


def unbiased_distances(distances: jax.Array, num_bits: int, epsilon: float) -> jax.Array:
    """h_hat float32 [...], from distances h' between randomized codes, integers [...].

    As any unbiased estimate it may be below 0 or above L.
    """
    q = flip_probability(epsilon)
    s = 2 * q * (1 - q)
    return (jnp.asarray(distances).astype(jnp.float32) - num_bits * s) / (1 - 2 * s)


def answer_probabilities(epsilon: float, num_classes: int) -> tuple[float, float]:
    """(p_1, p_0): probability of answering the true class, and of answering a particular other class.

    Raises:
        UsageError: `epsilon` is not positive, or there are fewer than two classes.
    """
    _check_epsilon(epsilon)
    if num_classes < 2:
        raise UsageError(f"num_classes={num_classes}: randomized labels need 2 or more")
    others = math.exp(-epsilon)
    total = 1 + (num_classes - 1) * others
    return 1 / total, others / total


def randomize_labels(
    labels: np.ndarray, draw: DrawUniform, num_classes: int, epsilon: float
) -> np.ndarray:
    """k-ary randomized response to "which class?"; unlabeled points (-1) stay unlabeled.

    One word of 64 bits decides both whether the class is kept and which other class replaces it.

    Args:
        labels: int [n], -1 to C - 1.
        draw: source of the noise.
        num_classes: C.
        epsilon: of a label, positive.

    Returns:
        int32 [n].
    """
    words = np.ascontiguousarray(draw(range(len(labels)), 2)).view(np.uint64)[:, 0]
    return answers(labels, words, num_classes, epsilon)


def answers(labels: np.ndarray, words: np.ndarray, num_classes: int, epsilon: float) -> np.ndarray:
    """Answer for each of 2^64 words: the first t give the first other class, the next t the second ...

    int32 [n], from labels int [n] and words uint64 [n]; t = `threshold(epsilon, C, 64)`.
    """
    number = words // np.uint64(threshold(epsilon, num_classes, _LABEL_WORD))
    others = np.minimum(number, np.uint64(num_classes)).astype(np.int32)
    others += others >= labels  # skips the true class
    is_other = (number < num_classes - 1) & (np.asarray(labels) >= 0)
    return np.where(is_other, others, labels).astype(np.int32)


def unbiased(answered: np.ndarray, num_classes: int, epsilon: float) -> np.ndarray:
    """(A - p_0 A 1 1^T) / (p_1 - p_0): its mean over `randomize_labels` is the value for true labels.

    A, real [..., C], is any linear function of the answers' one-hot rows: the rows themselves (zero for
    unlabeled points), their sums over points, or S times them. Rows keep their sum; entries may be negative.
    """
    keep, other = answer_probabilities(epsilon, num_classes)
    return (answered - other * answered.sum(axis=-1, keepdims=True)) / (keep - other)


def _check_epsilon(epsilon: float) -> None:
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise UsageError(f"epsilon={epsilon}: use finite numbers above 0")
