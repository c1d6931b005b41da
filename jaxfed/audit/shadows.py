"""Shadow models: the attacker's own models, trained with and without each target.

R. Shokri, M. Stronati, C. Song, V. Shmatikov. "Membership Inference Attacks Against Machine Learning Models".
IEEE S&P 2017. Each of R models is trained on a random part of the targets, members and others alike, as
large as the number of the attacked model's training examples among the targets. The attacker has candidates
and the training procedure; it does not know the members. If the attacked model was trained on half of the
targets, each shadow is too, as in LiRA (Carlini et al., S&P 2022). If it is the model of one of m clients,
about R / 2 m of the shadows have seen a given example.

If all labels of clients are targets, a shadow's training set is as large as the attacked model's. With a
smaller `audit.members` it is smaller: 1,500 of a client's 2,000 in FedCT's cell of Fashion-MNIST and 1,500 of
8,000 in that of CIFAR-10. Such shadows overfit more than the models that they imitate. The attacks then give
a lower bound: an attacker with more labels, and so shadows of the true size, may succeed more often.

If a method trains its clients on public targets, the attacker knows these (FedCT, arXiv 2310.05696,
Appendix E.1: the server and every client store the messages they receive) and trains its shadows on them too:

    h_t <- A(D_s u P_t, h_{t-1}),    D_s: the shadow's part of the targets,    P_t: targets of round t

with as many local steps in the same order (`jaxfed.audit.views.Instruction`). P_t is the
attacked run's own; its dependence on a single example is ignored.

Shadows are clients of their own federation, so that the learner's `fit` trains them together: networks in one
program (`jaxfed.federation.execution.client_map`), estimators side by side in processes.

Students
--------
PATE (Papernot et al., ICLR 2017, arXiv 1610.05755) releases a student, trained on public examples U alone,
with the labels that teachers voted for. A member affects the student only through its teacher's votes.
Shadows of the student are students of shadow ensembles, r = 1 ... R:

    D_r  -> D_r1, ..., D_rM           the shadow's targets, split at random in proportion to clients' labels
    h_rm <- A(D_rm)                   as many rounds as the attacked run's teachers
    L_r  <- vote(h_r1(U), ..., h_rM(U))
    s_r  <- A(U, L_r)                 as many rounds as its student

All targets of D_r count as members, whichever teacher has them. The attacker knows U and the method with its
settings, the noise of votes included; every ensemble draws its own noise. It does not know which client has
an example. The m-th teachers of all ensembles are trained together, R models in one program, then the
students one after another.

Kinds
-----
The attacker is the server, which knows the config: network, optimizer, learner, numbers of rounds and steps.
There are three kinds (`jaxfed.audit.attacks.SHADOWS`), trained on first use and cached in files:

    own_labels   models trained like clients of local learning, on labels alone, for as many steps as a
                 client of the method; every method that trains has them
    taught       distilled: as many more on the same examples, which also follow the instructions of the
                 attacked run; only where that run sent its clients public targets
    played       results of the method itself on other examples: its own labelings where it can be repeated
                 for every shadow (`View.shadows`), and students of teacher ensembles for PATE

Shadows of the first two kinds lack the other parts of a method (averaging in every round, unlabeled examples,
prototypes). They measure how hard an example is, less well for methods that differ much from local learning.
Methods with the same shadows share them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.algorithms.pate import noisy_vote
from jaxfed.audit.observations import AuditFiles, AuditTargets, Observation, Shadows
from jaxfed.audit.surface import STUDENT
from jaxfed.audit.views import Instruction, View
from jaxfed.config import methods
from jaxfed.config.assembly import Ingredients
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, without_labels
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.settings import Execution
from jaxfed.federation.method import plain
from jaxfed.learners import LEARNERS
from jaxfed.learners.client_fit import answers_of, speaking
from jaxfed.learners.learner import Learner, State, Taught
from jaxfed.random_streams import Stream

# Votes int32 [M, U], -1 without a vote, and a key of noise -> labels int32 [U], weights float32 [U].
Vote = Callable[[np.ndarray, jax.Array], tuple[np.ndarray, np.ndarray]]


class Models(NamedTuple):
    """All shadows after a round.

    Fields:
        learner: of all shadows.
        state: of the learner.
        failed: shadows that could not be fitted in some round so far.
    """

    learner: Learner
    state: State
    failed: frozenset[int]


def shadow_memberships(num_targets: int, size: int, number: int, seed: int) -> np.ndarray:
    """Training sets of the shadows among the targets, bool [R, n], `size` in every row.

    A random order of all targets is cut into as many whole parts as it gives, one per shadow; then a new
    order is drawn. Every target is in about R size / n shadows, in exactly half if `size` is half and R even.

    Raises:
        UsageError: a size outside of 1 ... n - 1.
    """
    if not 0 < size < num_targets:
        raise UsageError(
            f"shadow models of {size} examples out of {num_targets}: use 1 to {num_targets - 1}"
        )
    rng = np.random.default_rng((seed, Stream.SHADOW_MODELS))
    is_in = np.zeros((number, num_targets), bool)
    parts = num_targets // size
    for row in range(number):
        if row % parts == 0:
            order = rng.permutation(num_targets)
        start = row % parts * size
        is_in[row, order[start : start + size]] = True
    return is_in


def on_own_labels(rounds: int, steps: int) -> list[list[Instruction]]:
    """Instructions of `rounds` rounds for clients that learn from their own labels alone."""
    return [[Instruction(steps)]] * rounds


def shadow_answers(
    learner: Callable[..., Learner],
    federation: Federation,
    targets: AuditTargets,
    is_in: np.ndarray,
    *,
    instructions: Sequence[Sequence[Instruction]],
    observed: Collection[int],
    key: jax.Array,
) -> dict[int, Shadows]:
    """Train the shadows together, and record their answers after each of the observed rounds.

    Args:
        learner: keywords of a network -> learner of R shadows.
        federation: provides the examples, the public ones included.
        targets: n of them, and a population of m.
        is_in: bool [R, n].
        instructions: of round 1, 2, ...
        observed: rounds after which answers are recorded.
        key: typed; it and a shadow's number determine the shadow's networks and batches.

    Returns:
        For each observed round the answers; shadows that a learner cannot fit are left out.

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
    """Train the clients of `shadow_federation` together; yield the models after each observed round.

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
        if not model.continues and number not in observed:
            continue  # each fit is from scratch
        own_key = jax.random.fold_in(key, number)
        for place, one in enumerate(told):
            model = made(one.network)
            step_key = jax.random.fold_in(own_key, place) if place else own_key
            learns = cohort if one.on_own else without_labels(cohort)
            for part, taught in _parts(one, learns, public_x):
                fitted = model.fit(state, part, taught, step_key, one.steps)
                state = fitted.state
                failed |= set(fitted.failed)
        if number in observed:
            yield number, Models(model, state, failed)


def shadow_federation(
    federation: Federation, targets: AuditTargets, is_in: np.ndarray
) -> Federation:
    """R clients; client r holds the targets of row r, all labeled."""
    labeled = tuple(targets.example[row] for row in is_in)
    nothing = tuple(rows[:0] for rows in labeled)
    return replace(federation, partition=Partition(labeled, nothing, nothing))


def _parts(
    one: Instruction, cohort: Cohort, x: jax.Array
) -> Iterator[tuple[Cohort, Taught | None]]:
    """Yield clients that are fitted together, and their public targets; each alone if it has its own."""
    if one.label is None or one.weight is None:
        yield cohort, None
    elif one.label.ndim == 1:
        yield cohort, Taught(x, one.label, one.weight, one.soft)
    else:
        for row, (label, weight) in enumerate(zip(one.label, one.weight, strict=True)):
            alone = jax.tree.map(lambda field, row=row: field[row : row + 1], cohort)
            yield alone, Taught(x, label, weight)


def _answers(
    learner: Learner, state: object, ids: np.ndarray, x: np.ndarray, num_classes: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Probabilities [K, n, C], or one-hot labels, and the clients without an answer."""
    if learner.predict_proba is not None:
        return answers_of(learner, "predict_proba", state, ids, x, num_classes)
    labels, silent = answers_of(learner, "predict", state, ids, x, num_classes)
    return (labels[..., None] == np.arange(num_classes)).astype(np.float32), silent


class EnsemblePlan(NamedTuple):
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
    ensemble: EnsemblePlan,
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
        ensemble: how they are trained.
        observed: rounds of the method; before its vote there is no student.
        key: typed.

    Returns:
        For each observed round with a student the answers. Students that a learner cannot fit are left out;
        teachers that it cannot fit do not vote.

    Cost: the training of R M teachers and R students, in the memory of R models; R (M + 1) |U| labels.
    """
    parts = teacher_parts(is_in, ensemble.sizes, key)[: ensemble.voters]
    own_teacher = teacher()  # one for all places: its programs are compiled once
    votes = np.stack(
        [
            _votes(own_teacher, federation, targets, part, ensemble, place, key)
            for place, part in enumerate(parts)
        ]
    )
    noise = jax.random.fold_in(key, Stream.SHADOW_VOTES)
    voted = [
        ensemble.vote(votes[:, r], jax.random.fold_in(noise, r)) for r in range(votes.shape[1])
    ]
    label, weight = map(np.stack, zip(*voted, strict=True))
    told = Instruction(ensemble.student_steps, False, label, weight)
    begin = ensemble.rounds - 1
    return shadow_answers(
        student,
        federation,
        targets,
        is_in,
        instructions=[*[[]] * begin, *[[told]] * ensemble.student_rounds],
        observed=[number for number in observed if number > begin],
        key=jax.random.fold_in(key, Stream.STUDENTS),
    )


def teacher_parts(is_in: np.ndarray, sizes: Sequence[int], key: jax.Array) -> np.ndarray:
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
    ensemble: EnsemblePlan,
    place: int,
    key: jax.Array,
) -> np.ndarray:
    """Votes of the m-th teacher of every ensemble on the public examples, m = `place`, int32 [R, U]."""
    # A mixture chooses a learner by the model's number: roll, so that an ensemble's teachers differ.
    shadow = shadow_federation(federation, targets, np.roll(part, place, axis=0))
    [(_, models)] = shadow_models(
        lambda: teacher,
        shadow,
        instructions=on_own_labels(ensemble.rounds, ensemble.steps),
        observed=(ensemble.rounds,),
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


class ShadowPlan(NamedTuple):
    """Training plan of a method's shadow models.

    Fields:
        identity: cache key, equal for methods with equal shadows.
        rounds: number of rounds until the shadows change.
        train: federation, targets, is_in; observed, key -> round -> `Shadows`.
        what: description of the models, for display.
    """

    identity: str
    rounds: int
    train: Callable[..., dict[int, Shadows]]
    what: str = "shadow models"


@dataclass
class AuditShadows:
    """Shadow models available to an attacker of one method in one repeat.

    Attributes:
        config: of the experiment.
        files: of its audit.
        progress: displays the long steps.
        rounds: rounds whose messages are attacked.
        name: of the method.
        repeat: its number.
        federation: the clients.
        targets: the examples whose membership is inferred.
    """

    config: ConfigDict
    files: AuditFiles
    progress: RunProgress
    rounds: Sequence[int]
    name: str
    repeat: int
    federation: Federation
    targets: AuditTargets
    _made: dict[str, dict[int, Shadows]] = field(default_factory=dict)

    def of(self, seen: Observation, number: int) -> dict[str, Shadows]:
        """Return the shadows for a message of a round by their kind (`jaxfed.audit.attacks.SHADOWS`)."""
        if not self.config.audit.shadows:
            return {}
        # Counts come from models of one client each, even where only their sum is observed.
        of_all = seen.kind != "counts" and (seen.client < 0).any()
        size = self._size_of_all() if of_all else self._size_of_one()
        known = {
            how: self._trained(plan, size).get(min(number, plan.rounds))
            for how, plan in self._plans.items()
        }
        if self._students is not None and seen.message == STUDENT:
            trained = self._trained(self._students, self._size_of_all(), "-students")
            known["played"] = trained.get(min(number, self._students.rounds))
        else:
            name = self._played(seen.message, number)
            if name not in self._made:
                self._made[name] = self.files.shadows(name) or {}
            known["played"] = self._made[name].get(number)
        return {how: shadows for how, shadows in known.items() if shadows is not None}

    @cached_property
    def _plans(self) -> dict[str, ShadowPlan]:
        told = self.files.instructions(self.name, self.repeat)
        plans = {
            "own_labels": self.own_plan(),
            "taught": self.distilled_plan(told) if told else None,
        }
        return {how: plan for how, plan in plans.items() if plan is not None}

    @cached_property
    def _students(self) -> ShadowPlan | None:
        return self.student_plan()

    def play(self, views: Sequence[View], number: int) -> None:
        """Run the method itself for every shadow, for the views that support it, and save the results."""
        is_in = self._memberships(self._size_of_all())
        x, y = (values[self.targets.examples] for values in (self.federation.x, self.federation.y))
        for view in views:
            if view.shadows is not None:
                said = Shadows(is_in, np.asarray(view.shadows(x, y, is_in), np.float32))
                self.files.save_shadows(self._played(view.message, number), {number: said})

    def _played(self, message: str, number: int) -> str:
        return f"{self.name}-{self.repeat}-{number}-{message}"

    def _size_of_one(self) -> int:
        sizes = np.bincount(self.targets.client[self.targets.is_member])
        return round(float(np.mean(sizes[sizes > 0])))

    def _size_of_all(self) -> int:
        return int(self.targets.is_member.sum())

    def _trained(self, plan: ShadowPlan, size: int, suffix: str = "") -> dict[int, Shadows]:
        """Return shadow predictions from their file; train the shadows and save the file if it is missing."""
        name = f"{self.repeat}-{plan.identity}-{size}{suffix}"
        if name not in self._made:
            there = self.files.shadows(name)
            if there is None:
                what = f"{self.config.audit.shadows} {plan.what} of {size} examples"
                self.progress.working_on(f"repeat {self.repeat + 1} {what}")
                logging.info("audit: %s: %s", what, name)
                seed = self.config.seed + self.repeat
                there = plan.train(
                    self.federation,
                    self.targets,
                    self._memberships(size),
                    observed=sorted({min(one, plan.rounds) for one in self.rounds}),
                    key=jax.random.fold_in(jax.random.key(seed), Stream.SHADOW_MODELS),
                )
                self.files.save_shadows(name, there)
            self._made[name] = there
        return self._made[name]

    def _memberships(self, size: int) -> np.ndarray:
        seed, number = self.config.seed + self.repeat, self.config.audit.shadows
        return shadow_memberships(len(self.targets.example), size, number, seed)

    def own_plan(self) -> ShadowPlan | None:
        """Return the plan of shadows that learn like single clients; None if the method trains nothing."""
        config, name = self.config, self.name
        if not methods.needs(config, name).trains:
            return None
        own = methods.all_keywords(config, name)
        rounds = min(config.rounds, own.get("teacher_rounds", config.rounds))
        steps = own.get("steps", own.get("revisit_steps")) or self._local_steps()
        return self.distilled_plan(on_own_labels(rounds, steps))._replace(what="shadow models")

    def distilled_plan(self, instructions: Sequence[Sequence[Instruction]]) -> ShadowPlan:
        """Return the plan of shadows that receive the same instructions as the method's clients."""
        return ShadowPlan(
            self._identity([list(map(_described, told)) for told in instructions]),
            len(instructions),
            partial(shadow_answers, self._learner_of("learner"), instructions=instructions),
            f"shadow models, taught what {self.name} taught its clients,",
        )

    def student_plan(self) -> ShadowPlan | None:
        """Return the plan of shadow students; None for a method without a student."""
        config, federation = self.config, self.federation
        if plain(methods.factory_of(config, self.name)).__name__ != "pate":
            return None
        own = methods.all_keywords(config, self.name)
        gamma, sizes = float(own["gamma"]), tuple(map(len, federation.partition.labeled))

        def vote(votes: np.ndarray, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
            voters, classes = speaking(np.arange(len(votes)), votes), federation.num_classes
            return noisy_vote(votes, voters, key, Communication(), num_classes=classes, gamma=gamma)

        ensemble = EnsemblePlan(
            sizes=sizes,
            voters=int(config.cohort_size) or len(sizes),
            rounds=int(own["teacher_rounds"]),
            steps=int(own["steps"]),
            student_rounds=int(config.rounds - own["teacher_rounds"] + 1),
            student_steps=int(own["student_steps"]),
            vote=vote,
        )
        teacher, student = map(self._learner_of, ("learner", "server_learner"))
        return ShadowPlan(
            self._identity([gamma, *ensemble[:-1]]),
            int(config.rounds),
            partial(student_answers, teacher, student, ensemble=ensemble),
            f"shadow students with {ensemble.voters} teachers each,",
        )

    def _learner_of(self, ingredient: str) -> Callable[..., Learner]:
        """Return a function: keywords of a network -> learner; without any, the method's ingredient."""
        seen = self._seen
        made = Ingredients(seen, self.federation, self.repeat, Execution(seen.execution.workers))
        has_learners = methods.needs(seen, self.name).has_learners

        def learner(**network: Any) -> Learner:
            if not has_learners:
                return LEARNERS["network"](training=made.training(), **network)
            return made.network()(**network) if network else getattr(made, ingredient)()

        return learner

    def _identity(self, instructions: list[Any]) -> str:
        """Return a digest of everything that determines the shadows' training within one repeat."""
        seen = self._seen
        has_learners = methods.needs(seen, self.name).has_learners
        described = {
            "training": seen.training.to_dict(),
            "model": seen.model.to_dict(),
            "learner": seen.learner.to_dict() if has_learners else {"name": "network", "names": ()},
            "instructions": instructions,
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]

    def _local_steps(self) -> int:
        """Return the local steps in one round of the client with the most labels."""
        wanted, most = self._seen.training, self.federation.max_labels
        if wanted.local_steps:
            return int(wanted.local_steps)
        return int(wanted.epochs * math.ceil(most / (wanted.batch_size or most)))

    @cached_property
    def _seen(self) -> ConfigDict:
        """The config with the method's own training."""
        return methods.with_own_training(self.config, self.name)


def _described(one: Instruction) -> list[Any]:
    """Return the instruction's fields as JSON values, with arrays as digests."""
    return [
        hashlib.sha256(value.tobytes()).hexdigest() if isinstance(value, np.ndarray) else value
        for value in one
    ]
