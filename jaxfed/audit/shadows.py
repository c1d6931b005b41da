"""Shadow models: what the attacker trains itself to know what models with and without an example say of it.

R. Shokri, M. Stronati, C. Song, V. Shmatikov. "Membership Inference Attacks Against Machine Learning Models".
IEEE S&P 2017. Each of R models is trained on a random part of the targets, members and others alike, as large
as those of the attacked model's examples that are asked about: the attacker has candidates and the training
procedure, and no word of who is a member. Of a model of half the targets that is half of them, as in LiRA
(Carlini et al., S&P 2022); of one client's among m about R / 2 m of the models have seen an example, and all
others have not.

Where all labels of clients are asked about, that is as large as what the attacked model was trained on. With
`audit.members` below them it is less, 1,500 of a client's 2,000 in FedCT's cell of Fashion-MNIST and 1,500 of
8,000 in that of CIFAR-10: such shadows overfit more than the models that they stand for. What attacks show is
then a bound from below: an attacker who has more labels, and so shadows of the true size, may see more.

Where a method teaches its clients by public targets, the attacker knows these (FedCT, arXiv 2310.05696,
Appendix E.1: the server and every client remember what they are sent), and teaches its shadows the same:

    h_t <- A(D_s u P_t, h_{t-1}),    D_s: the shadow's part of the targets,    P_t: what round t taught

with as many local steps in the same order (`jaxfed.federation.exposure.Instruction`). P_t is the attacked
run's own; that it would have been another without an example is left out.

Shadows are clients of their own federation, so that the learner's `fit` trains them together: networks in one
program (`jaxfed.federation.client_map`), estimators side by side in processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.audit.targets import Targets
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import without_labels
from jaxfed.federation.exposure import Instruction
from jaxfed.learners.answers import answers_of
from jaxfed.learners.learner import Learner, State, Taught

_SHADOWS = 0x73686164


class Shadows(NamedTuple):
    """What shadow models say of targets and population.

    Fields:
        is_in: bool [R, n], who was trained on which target; on the population nobody is.
        answers: float32 [R, n + m, C], probabilities, or marks of labels.
    """

    is_in: np.ndarray
    answers: np.ndarray


class Models(NamedTuple):
    """All shadows after a round.

    Fields:
        learner: what they are.
        state: of it.
        failed: which of them could not be fitted, in any round so far.
    """

    learner: Learner
    state: State
    failed: frozenset[int]


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


def on_own_labels(rounds: int, steps: int) -> list[list[Instruction]]:
    """What each of so many rounds tells clients that learn from labels of their own alone."""
    return [[Instruction(steps)]] * rounds


def shadow_answers(
    learner: Callable[..., Learner],
    federation: Federation,
    targets: Targets,
    is_in: np.ndarray,
    *,
    instructions: Sequence[Sequence[Instruction]],
    observed: Collection[int],
    key: jax.Array,
) -> dict[int, Shadows]:
    """Train the shadows together, and ask them after each of the observed rounds.

    Args:
        learner: keywords of a network -> learner, of R shadows, whatever its keywords of one state.
        federation: whose examples they are, and the public ones.
        targets: n of them, and a population of m.
        is_in: bool [R, n].
        instructions: of round 1, 2, ...
        observed: rounds after which they are asked.
        key: typed; a shadow's networks and batches follow from it and its number, whoever else is trained.

    Returns:
        For each observed round what they say; shadows that a learner cannot fit are left out.

    Cost: R times the training of one model, and a pass over the targets for each observed round.
    """
    shadow = shadow_federation(federation, targets, is_in)
    x = federation.x[targets.examples]
    said: dict[int, Shadows] = {}
    silent: set[int] = set()
    for number, models in shadow_models(
        learner, shadow, instructions=instructions, observed=observed, key=key
    ):
        there = np.setdiff1d(np.arange(len(is_in)), sorted(models.failed | silent)).astype(np.int32)
        answers, mute = _answers(models.learner, models.state, there, x, federation.num_classes)
        has_answered = ~np.isin(there, list(mute))
        silent |= set(mute)
        said[number] = Shadows(is_in[there[has_answered]], answers[has_answered])
    return said


def shadow_models(
    learner: Callable[..., Learner],
    shadow: Federation,
    *,
    instructions: Sequence[Sequence[Instruction]],
    observed: Collection[int],
    key: jax.Array,
) -> Iterator[tuple[int, Models]]:
    """Train the clients of `shadow_federation` together; the models after each of the observed rounds.

    Arguments and cost as `shadow_answers`.
    """
    cohort = shadow.cohort()
    cohort = cohort._replace(x=jnp.asarray(cohort.x))  # one transfer for all rounds
    public_x = jnp.asarray(shadow.public_examples)
    made = cache(lambda network: learner(**dict(network)))
    model = made(next(one.network for told in instructions for one in told))
    state = model.init(jax.random.fold_in(key, 0), shadow)
    failed: frozenset[int] = frozenset()
    for number, told in enumerate(instructions, 1):
        if model.renewed is None and number not in observed:
            continue  # each fit is from scratch
        own_key = jax.random.fold_in(key, number)
        for place, one in enumerate(told):
            model = made(one.network)
            fitted = model.fit(
                state,
                cohort if one.on_own else without_labels(cohort),
                _taught(one, public_x),
                jax.random.fold_in(own_key, place) if place else own_key,
                one.steps,
            )
            state = fitted.state
            failed |= set(fitted.failed)
        if number in observed:
            yield number, Models(model, state, failed)


def shadow_federation(federation: Federation, targets: Targets, is_in: np.ndarray) -> Federation:
    """R clients that hold the targets of a row each, all with their labels."""
    labeled = tuple(targets.example[row] for row in is_in)
    nothing = tuple(rows[:0] for rows in labeled)
    return replace(federation, partition=Partition(labeled, nothing, nothing))


def _taught(one: Instruction, x: jax.Array) -> Taught | None:
    if one.label is None or one.weight is None:
        return None
    return Taught(x, one.label, one.weight, one.soft)


def _answers(
    learner: Learner, state: object, ids: np.ndarray, x: np.ndarray, num_classes: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Probabilities [K, n, C], or marks of labels, and who has none."""
    if learner.predict_proba is not None:
        return answers_of(learner, "predict_proba", state, ids, x, num_classes)
    labels, silent = answers_of(learner, "predict", state, ids, x, num_classes)
    return (labels[..., None] == np.arange(num_classes)).astype(np.float32), silent
