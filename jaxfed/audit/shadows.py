"""Shadow models: what the attacker trains itself to know what models with and without an example say of it.

R. Shokri, M. Stronati, C. Song, V. Shmatikov. "Membership Inference Attacks Against Machine Learning Models".
IEEE S&P 2017. Each of R models is trained on a random part of the targets, members and others alike, as large
as what the attacked model was trained on: the attacker has candidates and the training procedure, and no word
of who is a member. Of a model of half the targets that is half of them, as in LiRA (Carlini et al., S&P
2022); of one client's among m about R / 2 m of the models have seen an example, and all others have not.

Shadows are clients of their own federation, so that the learner's `fit` trains them together: networks in one
program (`jaxfed.federation.client_map`), estimators side by side in processes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.audit.targets import Targets
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.learners.answers import answers_of
from jaxfed.learners.learner import Learner

_SHADOWS = 0x73686164


class Shadows(NamedTuple):
    """What shadow models say of targets and population.

    Fields:
        is_in: bool [R, n], who was trained on which target; on the population nobody is.
        answers: float32 [R, n + m, C], probabilities, or marks of labels.
    """

    is_in: np.ndarray
    answers: np.ndarray


def shadow_memberships(num_targets: int, size: int, number: int, seed: int) -> np.ndarray:
    """Which targets each shadow is trained on, bool [R, n], `size` in every row.

    A random order of all targets is dealt to as many shadows as it gives whole parts, then a new order: every
    target is in about R size / n of them, in exactly half where `size` is half and R even.

    Raises:
        UsageError: a size outside of 1 ... n - 1.
    """
    if not 0 < size < num_targets:
        raise UsageError(
            f"shadow models of {size} examples out of {num_targets}: allowed are 1 to {num_targets - 1}"
        )
    rng = np.random.default_rng((seed, _SHADOWS))
    is_in = np.zeros((number, num_targets), bool)
    parts = num_targets // size
    for row in range(number):
        if row % parts == 0:
            order = rng.permutation(num_targets)
        start = row % parts * size
        is_in[row, order[start : start + size]] = True
    return is_in


def shadow_answers(
    learner: Learner,
    federation: Federation,
    targets: Targets,
    is_in: np.ndarray,
    *,
    rounds: int,
    steps: int,
    observed: Collection[int],
    key: jax.Array,
) -> dict[int, Shadows]:
    """Train the shadows together, and ask them after each of the observed rounds.

    Args:
        learner: of shadows, R of them.
        federation: whose examples they are.
        targets: n of them, and a population of m.
        is_in: bool [R, n].
        rounds: how many.
        steps: local steps of a round.
        observed: rounds after which they are asked.
        key: typed; a shadow's networks and batches follow from it and its number, whoever else is trained.

    Returns:
        For each observed round what they say; shadows that a learner cannot fit are left out.

    Cost: R times the training of one model, and a pass over the targets for each observed round.
    """
    shadow = shadow_federation(federation, targets, is_in)
    cohort = shadow.cohort()
    cohort = cohort._replace(x=jnp.asarray(cohort.x))  # one transfer for all rounds
    state = learner.init(jax.random.fold_in(key, 0), shadow)
    said: dict[int, Shadows] = {}
    failed: set[int] = set()
    for number in range(1, rounds + 1):
        fitted = learner.fit(state, cohort, None, jax.random.fold_in(key, number), steps)
        state = fitted.state
        failed |= set(fitted.failed)
        if number in observed:
            there = np.setdiff1d(np.asarray(cohort.client_id), sorted(failed)).astype(np.int32)
            x = federation.x[targets.examples]
            answers, silent = _answers(learner, state, there, x, federation.num_classes)
            has_answered = ~np.isin(there, list(silent))
            failed |= set(silent)
            said[number] = Shadows(is_in[there[has_answered]], answers[has_answered])
    return said


def shadow_federation(federation: Federation, targets: Targets, is_in: np.ndarray) -> Federation:
    """R clients that hold the targets of a row each, all with their labels."""
    labeled = tuple(targets.example[row] for row in is_in)
    nothing = tuple(rows[:0] for rows in labeled)
    return replace(federation, partition=Partition(labeled, nothing, nothing))


def _answers(
    learner: Learner, state: object, ids: np.ndarray, x: np.ndarray, num_classes: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Probabilities [K, n, C], or marks of labels, and who has none."""
    if learner.predict_proba is not None:
        return answers_of(learner, "predict_proba", state, ids, x, num_classes)
    labels, silent = answers_of(learner, "predict", state, ids, x, num_classes)
    return (labels[..., None] == np.arange(num_classes)).astype(np.float32), silent
