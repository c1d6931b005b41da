"""Consensus: one label for each public example from the clients' answers (FedCT, Algorithm 1, line 11).

Client k of K answers example u with a label v_ku, probabilities p_ku [C], or a number z_ku. Most rules need
only a tally, the sum over clients of one row each. A secure sum reveals nothing else:

    majority              t_uc = #{k : v_ku = c}                         label = argmax_c t_uc
    qualified_majority    the same; abstains unless t_uc / sum_c' t_uc' >= threshold for the label
    confidence_weighted   t_uc = sum over k with argmax p_ku = c of p_kuc    label = argmax_c t_uc
    soft_mean             t_uc = sum_k p_kuc                             label = argmax_c t_uc
    mean                  t_u = (sum_k z_ku, #{k : there is a z_ku})         z_u = t_u0 / t_u1

For all rules but `mean`, `soft` holds the shares t_uc / sum_c' t_uc'; the label's share is the clients'
confidence in it. `staple` (`jaxfed.training.consensus.staple`) weighs clients by their agreement with the
others. It needs every client's labels, so no secure sum can serve it.

The paper's consensus is the plain majority, every label with weight 1. Ties go to the smallest class, as in
the authors' code. A qualified majority is commented out there, at 0.8 and 0.9.

    agreed = CONSENSUS["qualified_majority"](num_classes, threshold=0.8).agree(votes, client_id)

A client with id -1, a label -1, a row of zeros as probabilities, and a NaN count as no answer. An example
without any answer has label -1 and weight 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxfed.errors import UsageError
from jaxfed.registry import Registry
from jaxfed.settings import Share, choose_one_of, hinted, settings_of
from jaxfed.training.consensus.staple import staple_performance

Answers = Literal["labels", "probabilities", "numbers"]

ABSTAINED = -1
_ROUNDING = 1e-6  # relative tolerance of shares: 4 of 5 reach 0.8 on every backend


class Agreed(NamedTuple):
    """Result of a consensus: labels, their weights, and the shares of all classes.

    Fields:
        label: int32 [U], -1 without agreement; for numbers float32 [U], their mean.
        weight: float32 [U], 1 with agreement and 0 without.
        soft: float32 [U, C], the classes' shares; zeros where nobody answers. For numbers [U, 1], the mean.
    """

    label: jax.Array
    weight: jax.Array
    soft: jax.Array


class Agree(Protocol):
    """Function from the clients' answers to the agreed labels."""

    def __call__(self, answers: jax.Array, client_id: jax.Array) -> Agreed:
        """Return the consensus of K clients.

        Args:
            answers: labels int32 [K, U], probabilities float32 [K, U, C], or numbers float32 [K, U].
            client_id: int32 [K], -1 for a row without a client.
        """
        ...


class Tally(Protocol):
    """Function from the clients' answers to their sum, one row per example."""

    def __call__(self, answers: jax.Array, client_id: jax.Array) -> jax.Array:
        """Return the tally: int32 [U, C] of labels, float32 [U, C] of probabilities, [U, 2] of numbers."""
        ...


class FromTally(Protocol):
    """Function from a tally to the agreed labels."""

    def __call__(self, tally: jax.Array) -> Agreed:
        """Return the consensus of a tally, which may hold any real numbers, such as estimates."""
        ...


class Consensus(NamedTuple):
    """One consensus rule. `agree(answers, client_id)` is `from_tally(tally(answers, client_id))`.

    Fields:
        answers: the kind of answer that clients send.
        agree: answers -> consensus.
        tally: answers -> the sum over clients that suffices; None: no sum does.
        from_tally: that sum -> consensus; None: no sum suffices.
    """

    answers: Answers
    agree: Agree
    tally: Tally | None
    from_tally: FromTally | None


@partial(jax.jit, static_argnames="num_classes")
def vote_histogram(votes: jax.Array, client_id: jax.Array, num_classes: int) -> jax.Array:
    """Count the votes for each class, int32 [U, C] of votes int32 [K, U].

    Votes outside of 0 ... C - 1 are ignored. Cost: K U C comparisons, fused: no array of that size.
    """
    is_vote = jnp.where(client_id[:, None] >= 0, votes, ABSTAINED)
    return jnp.sum(jax.nn.one_hot(is_vote, num_classes, dtype=jnp.int32), axis=0)


@jax.jit
def summed_probabilities(probabilities: jax.Array, client_id: jax.Array) -> jax.Array:
    """sum_k p_kuc, float32 [U, C] of [K, U, C]."""
    return jnp.sum(jnp.where(client_id[:, None, None] >= 0, probabilities, 0), axis=0)


@jax.jit
def summed_confidences(probabilities: jax.Array, client_id: jax.Array) -> jax.Array:
    """Sum the clients' largest probabilities by class, all others as 0: float32 [U, C] of [K, U, C]."""
    largest = jnp.argmax(probabilities, axis=-1)
    is_largest = jax.nn.one_hot(largest, probabilities.shape[-1], dtype=probabilities.dtype)
    return summed_probabilities(is_largest * probabilities, client_id)


@jax.jit
def summed_numbers(numbers: jax.Array, client_id: jax.Array) -> jax.Array:
    """Return (sum, count), float32 [U, 2] of numbers [K, U]."""
    is_there = (client_id[:, None] >= 0) & ~jnp.isnan(numbers)
    total = jnp.sum(jnp.where(is_there, numbers, 0), axis=0)
    return jnp.stack([total, jnp.sum(is_there, axis=0, dtype=jnp.float32)], axis=1)


@jax.jit
def largest_share(tally: jax.Array, *, threshold: Share = 0.0) -> Agreed:
    """Return the class with the largest share, the smallest of equals, if that share reaches the threshold.

    Args:
        tally: real [U, C]; negative entries, as estimates may have, count as 0.
        threshold: the least share t_uc / sum_c' t_uc' of the label, up to 10^-6 of it.
    """
    tally = jnp.maximum(tally.astype(jnp.float32), 0)
    total = jnp.sum(tally, axis=1)
    soft = tally / jnp.where(total > 0, total, 1)[:, None]
    share = jnp.max(soft, axis=1)
    is_agreed = (total > 0) & (share >= threshold * (1 - _ROUNDING))
    label = jnp.where(is_agreed, jnp.argmax(tally, axis=1).astype(jnp.int32), ABSTAINED)
    return Agreed(label, is_agreed.astype(jnp.float32), soft)


def _of_tally(answers: Answers, tally: Tally, from_tally: FromTally) -> Consensus:
    def agree(answers: jax.Array, client_id: jax.Array) -> Agreed:
        return from_tally(tally(answers, client_id))

    return Consensus(answers, agree, tally, from_tally)


def majority(num_classes: int) -> Consensus:
    """Majority vote over labels, of classes 0 ... `num_classes` - 1."""
    tally = partial(vote_histogram, num_classes=num_classes)
    return _of_tally("labels", tally, largest_share)


@hinted
def qualified_majority(num_classes: int, *, threshold: Share = 0.8) -> Consensus:
    """Majority vote that abstains below a share `threshold` of the votes."""
    decide = partial(largest_share, threshold=threshold)
    return _of_tally("labels", partial(vote_histogram, num_classes=num_classes), decide)


@hinted
def confidence_weighted(num_classes: int, *, threshold: Share = 0.0) -> Consensus:
    """Majority vote in which a vote counts as much as its client's confidence in it, max_c p_kuc.

    This is not the argmax of the mean probabilities (`soft_mean`): probabilities other than a client's
    largest are ignored. For one-hot probabilities all three rules agree.

    Args:
        num_classes: C; unused, since the probabilities have it, but all rules take it.
        threshold: the least share of all confidence that the label must have.
    """
    del num_classes
    decide = partial(largest_share, threshold=threshold)
    return _of_tally("probabilities", summed_confidences, decide)


@hinted
def soft_mean(num_classes: int, *, threshold: Share = 0.0) -> Consensus:
    """The mean of the clients' probabilities (`soft`, for distillation), and its largest class.

    The z of distributed distillation with a server in the middle (Bistritz, Mann, Bambos, NeurIPS 2020).

    Args:
        num_classes: C; unused, since the probabilities have it, but all rules take it.
        threshold: the least mean probability of the label.
    """
    del num_classes
    decide = partial(largest_share, threshold=threshold)
    return _of_tally("probabilities", summed_probabilities, decide)


def mean(num_classes: int = 0) -> Consensus:
    """The mean of the clients' numbers, for regression (named in the paper's Section 6).

    For rounds that you write yourself: labels are classes in every data set, federation, learner and metric
    here, so `fedct` refuses this consensus. Co-training of regressors:

        taught = [(x, z) for x, z in clients]                               # x [n_i, d], z float [n_i]
        for _ in range(rounds):
            learned = [DecisionTreeRegressor(max_depth=4).fit(x, z) for x, z in taught]
            told = np.stack([each.predict(public) for each in learned]).astype(np.float32)
            agreed = mean().agree(told, np.arange(len(clients), dtype=np.int32))
            taught = [
                (np.concatenate([x, public]), np.concatenate([z, agreed.label])) for x, z in clients
            ]
    """
    del num_classes

    def from_tally(tally: jax.Array) -> Agreed:
        total, count = tally.astype(jnp.float32).T
        number = total / jnp.where(count > 0, count, 1)
        return Agreed(number, (count > 0).astype(jnp.float32), number[:, None])

    return _of_tally("numbers", summed_numbers, from_tally)


@hinted
def staple(num_classes: int, *, threshold: Share = 0.0) -> Consensus:
    """The most likely class under a separate error model for each client
    (`jaxfed.training.consensus.staple`).

    Args:
        num_classes: C.
        threshold: the least posterior probability of the label.

    Raises:
        UsageError: fewer than two classes.
    """
    if num_classes < 2:
        raise UsageError(
            key="num_classes", owner="staple", value=num_classes, allowed="use 2 or more"
        )

    def agree(answers: jax.Array, client_id: jax.Array) -> Agreed:
        votes = jnp.where(client_id[:, None] >= 0, answers, ABSTAINED)
        performance = staple_performance(votes, num_classes)
        anyone = jnp.any(votes >= 0, axis=0)[:, None]
        posterior = jnp.where(anyone, performance.posterior, 0)
        return largest_share(posterior, threshold=threshold)

    return Consensus("labels", agree, None, None)


_OWN: dict[str, Callable[..., Consensus]] = {
    "majority": majority,
    "qualified_majority": qualified_majority,
    "confidence_weighted": confidence_weighted,
    "soft_mean": soft_mean,
    "mean": mean,
    "staple": staple,
}
CONSENSUS = Registry("consensus", _OWN, num_given=1)


def consensus_of(name: str, num_classes: int, *, threshold: Share = 0.0) -> Consensus:
    """Return the named consensus on classes.

    Args:
        name: a name in `CONSENSUS` of a consensus on labels or probabilities.
        num_classes: C.
        threshold: 0 leaves the consensus's default.

    Raises:
        UsageError: no such consensus, a consensus on numbers, or a threshold for one without.
    """
    allowed = choose_one_of([one for one in CONSENSUS if one != "mean"])
    if name not in CONSENSUS:
        raise UsageError(key="consensus", value=name, allowed=allowed)
    if CONSENSUS[name](num_classes).answers == "numbers":
        raise UsageError(
            "is of numbers, and labels are classes", key="consensus", value=name, allowed=allowed
        )
    having = [one for one in CONSENSUS if "threshold" in settings_of(CONSENSUS[one])]
    if threshold and name not in having:
        raise UsageError(
            f"consensus={name!r} has no such setting",
            key="threshold",
            value=threshold,
            allowed=f"use it with {' or '.join(map(repr, having))}",
        )
    return CONSENSUS[name](num_classes, **({"threshold": threshold} if threshold else {}))
