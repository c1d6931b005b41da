"""Noise while training, fitted to a budget before and accounted for after every round."""

from __future__ import annotations

from types import SimpleNamespace

import jax
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.sampling import Participation
from jaxfed.privacy.sampled_gaussian import Subsampling, noise_multiplier_of
from jaxfed.training.specification import Training


def check_private(training: Training, method: str) -> None:
    """Check that noise covers all that a client sends, and that all clients of a cohort train.

    Raises:
        UsageError: the model has running statistics, which would leave a client without noise, or clients
            of a cohort do not train, although the guarantee counts them.
    """
    if training.training_cohort_size:
        raise UsageError(
            "the privacy of this method counts the clients of a cohort, of which all train",
            key="training_cohort_size",
            owner="Training",
            value=training.training_cohort_size,
            allowed="use 0, and cohorts of as many clients as are to train",
        )
    model = jax.eval_shape(training.model.init, jax.random.key(0))
    if jax.tree.leaves(nnx.split_state(model, nnx.Param, ...)[1]):
        raise UsageError(
            f"{method}: this network has BatchNorm, whose running statistics no noise covers; use a network "
            "without, such as config.model.norm='group'"
        )


def check_budget(given: SimpleNamespace) -> None:
    """Check that a method's keywords give noise directly or by an epsilon, not both.

    Raises:
        UsageError: both are given.
    """
    if given.noise_multiplier and given.target_epsilon:
        raise UsageError(
            f"target_epsilon={given.target_epsilon} chooses it",
            key="noise_multiplier",
            value=given.noise_multiplier,
            allowed="use 0",
        )


def fitted_noise(
    participation: Participation | None,
    *,
    noise_multiplier: float,
    target_epsilon: float,
    delta: float,
    draw: Subsampling,
    releases: int = 1,
) -> float:
    """Return the given noise multiplier, or the least one that keeps a run within an epsilon.

    Args:
        participation: has the number of rounds that a client takes part in; None: unknown.
        noise_multiplier: z, or 0 if it is to be found.
        target_epsilon: at the end of a run, or 0 if z is given.
        delta: of the guarantee.
        draw: the sampling behind one release.
        releases: releases of a client in a round.

    Raises:
        UsageError: a target without a `participation`.
    """
    if not target_epsilon:
        return noise_multiplier
    if participation is None:
        raise UsageError(
            "it is not known how often a client takes part",
            key="target_epsilon",
            value=target_epsilon,
            allowed="give participation=...",
        )
    rounds = participation.most_rounds()
    return noise_multiplier_of(target_epsilon, delta, rounds * releases, draw)
