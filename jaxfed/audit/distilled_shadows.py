"""Shadow students: models distilled from the votes of shadow teachers.

PATE (Papernot et al., ICLR 2017, arXiv 1610.05755) releases a student, trained on public examples U
alone, with the labels that teachers voted for. A member affects the student only through its teacher's votes.
Shadows of the student are students of shadow ensembles, r = 1 ... R:

    D_r  -> D_r1, ..., D_rM           the shadow's targets, split at random in proportion to clients' labels
    h_rm <- A(D_rm)                   as many rounds as the attacked run's teachers
    L_r  <- vote(h_r1(U), ..., h_rM(U))
    s_r  <- A(U, L_r)                 as many rounds as its student

All targets of D_r count as members, whichever teacher has them. The attacker knows U and the method with its
settings, the noise of votes included; every ensemble draws its own noise. It does not know which client has
an example.

The m-th teachers of all ensembles are trained together, R models in one program, then the students: M + 1
trainings of R models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxfed.audit.shadows import (
    Shadows,
    on_own_labels,
    shadow_answers,
    shadow_federation,
    shadow_models,
)
from jaxfed.audit.targets import AuditTargets
from jaxfed.federation.attack_surface import Instruction
from jaxfed.federation.clients import Federation
from jaxfed.learners.answers import answers_of
from jaxfed.learners.learner import Learner
from jaxfed.random_streams import Stream

# Votes int32 [M, U], -1 without a vote, and a key of noise -> labels int32 [U], weights float32 [U].
Vote = Callable[[np.ndarray, jax.Array], tuple[np.ndarray, np.ndarray]]


class Schooling(NamedTuple):
    """Training of an ensemble and its student.

    Fields:
        sizes: number of labels of each client; teachers' parts have the same proportions.
        voters: number of teachers that vote; the others need not be trained.
        rounds: in which teachers train; they vote at the end of the last.
        steps: of a teacher in each.
        student_rounds: the student begins in the round of the vote.
        student_steps: in each.
        vote: maps the teachers' answers to the student's labels and weights.
    """

    sizes: tuple[int, ...]
    voters: int
    rounds: int
    steps: int
    student_rounds: int
    student_steps: int
    vote: Vote


def student_answers(
    teacher: Callable[..., Learner],
    student: Callable[..., Learner],
    federation: Federation,
    targets: AuditTargets,
    is_in: np.ndarray,
    *,
    schooling: Schooling,
    observed: Collection[int],
    key: jax.Array,
) -> dict[int, Shadows]:
    """Train ensembles and their students, and record the students' answers after each observed round.

    Args:
        teacher: -> learner, of R models.
        student: likewise.
        federation: provides the examples, the public ones included.
        targets: n of them, and a population of m.
        is_in: bool [R, n], targets that each ensemble is trained on.
        schooling: how they are trained.
        observed: rounds of the method; before its vote there is no student.
        key: typed.

    Returns:
        For each observed round with a student the answers. Students that a learner cannot fit are left out;
        teachers that it cannot fit do not vote.

    Cost: the training of R M teachers and R students, in the memory of R models; R (M + 1) |U| labels.
    """
    parts = dealt(is_in, schooling.sizes, key)[: schooling.voters]
    own_teacher = teacher()  # one for all places: its programs are compiled once
    votes = np.stack(
        [
            _votes(own_teacher, federation, targets, part, schooling, place, key)
            for place, part in enumerate(parts)
        ]
    )
    noise = jax.random.fold_in(key, Stream.SHADOW_VOTES)
    heard = [
        schooling.vote(votes[:, r], jax.random.fold_in(noise, r)) for r in range(votes.shape[1])
    ]
    label, weight = map(np.stack, zip(*heard, strict=True))
    lesson = Instruction(schooling.student_steps, False, label, weight)
    begin = schooling.rounds - 1
    return shadow_answers(
        student,
        federation,
        targets,
        is_in,
        instructions=[*[[]] * begin, *[[lesson]] * schooling.student_rounds],
        observed=[number for number in observed if number > begin],
        key=jax.random.fold_in(key, Stream.STUDENTS),
    )


def dealt(is_in: np.ndarray, sizes: Sequence[int], key: jax.Array) -> np.ndarray:
    """Split each shadow's targets among M teachers in these proportions, bool [M, R, n]."""
    rng = np.random.default_rng(
        np.asarray(jax.random.key_data(jax.random.fold_in(key, Stream.SHADOW_PARTS)))
    )
    parts = np.zeros((len(sizes), *is_in.shape), bool)
    share = np.cumsum(sizes) / sum(sizes)
    for shadow, row in enumerate(is_in):
        own = rng.permutation(np.flatnonzero(row))
        cuts = np.rint(share * len(own)).astype(int)[:-1]
        for teacher, part in enumerate(np.split(own, cuts)):
            parts[teacher, shadow, part] = True
    return parts


def _votes(
    teacher: Learner,
    federation: Federation,
    targets: AuditTargets,
    part: np.ndarray,
    schooling: Schooling,
    place: int,
    key: jax.Array,
) -> np.ndarray:
    """Votes of the m-th teacher of every ensemble on the public examples, m = `place`, int32 [R, U]."""
    # A mixture chooses a learner by the model's number: roll, so that an ensemble's teachers differ.
    shadow = shadow_federation(federation, targets, np.roll(part, place, axis=0))
    [(_, models)] = shadow_models(
        lambda: teacher,
        shadow,
        instructions=on_own_labels(schooling.rounds, schooling.steps),
        observed=(schooling.rounds,),
        key=jax.random.fold_in(key, place),
    )
    numbers = np.arange(len(part), dtype=np.int32)
    ids = np.where(np.isin(numbers, list(models.failed)), -1, numbers)
    votes, _ = answers_of(
        models.learner,
        "predict",
        models.state,
        ids,
        federation.public_examples,
        federation.num_classes,
    )
    return np.roll(votes, -place, axis=0)
