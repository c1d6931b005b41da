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

The attacker is the server, which knows the config: network, optimizer, learner, numbers of rounds and steps.
There are two kinds of shadows (`jaxfed.audit.attacks.SHADOWS`), each stored in a file:

    own_labels   models trained like clients of local learning, on labels alone, for as many steps as a
                 client of the method; every method that trains has them, and methods with equal shadows
                 share them
    played       results of the method itself on other examples, where it can be repeated for every shadow
                 (`View.shadows`: one more client's labelings of its own graph)

Shadows of the first kind lack the other parts of a method (averaging in every round, public targets,
unlabeled examples, prototypes). They measure how hard an example is, less well for methods that differ much
from local learning. Tried and given up (best AUC, three seeds of Fashion-MNIST; `results/audit`): shadows
that also learn from the attacked run's public targets find 0.868 of distillation in place of 0.858, 0.857 of
FedMD in place of 0.834, 0.678 of FedCT's labels in place of 0.699; students of shadow ensembles find 0.547 of
PATE's student in place of 0.541, at M + 1 times the cost.

Shadows are clients of their own federation, so that the learner's `fit` trains them together: networks in one
program (`jaxfed.federation.execution`), estimators side by side in processes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.audit.observations import AuditFiles, AuditTargets, Observation, Shadows
from jaxfed.audit.views import View
from jaxfed.config import methods
from jaxfed.config.assembly import Ingredients
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution import Execution
from jaxfed.learners import LEARNERS
from jaxfed.learners.client_fit import answers_of
from jaxfed.learners.learner import Learner
from jaxfed.random_streams import Stream


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


def shadow_federation(
    federation: Federation, targets: AuditTargets, is_in: np.ndarray
) -> Federation:
    """R clients; client r holds the targets of row r, all labeled."""
    labeled = tuple(targets.example[row] for row in is_in)
    nothing = tuple(rows[:0] for rows in labeled)
    return replace(federation, partition=Partition(labeled, nothing, nothing))


def shadow_answers(
    learner: Learner,
    federation: Federation,
    targets: AuditTargets,
    is_in: np.ndarray,
    *,
    rounds: int,
    steps: int,
    observed: Collection[int],
    key: jax.Array,
) -> dict[int, Shadows]:
    """Train the shadows together, and record their answers after each of the observed rounds.

    Args:
        learner: of R shadows.
        federation: provides the examples.
        targets: n of them, and a population of m.
        is_in: bool [R, n].
        rounds: of training.
        steps: in each of them.
        observed: rounds after which answers are recorded.
        key: typed; it and a shadow's number determine the shadow's networks and batches.

    Returns:
        For each observed round the answers; shadows that a learner cannot fit are left out.

    Cost: R times the training of one model, and a pass over the targets for each observed round.
    """
    shadow = shadow_federation(federation, targets, is_in)
    cohort = shadow.cohort()
    cohort = cohort._replace(x=jnp.asarray(cohort.x))  # one transfer for all rounds
    x = federation.x[targets.examples]
    state = learner.init(jax.random.fold_in(key, 0), shadow)
    recorded: dict[int, Shadows] = {}
    failed: set[int] = set()
    for number in range(1, rounds + 1):
        if not learner.continues and number not in observed:
            continue  # each fit is from scratch
        fitted = learner.fit(state, cohort, None, jax.random.fold_in(key, number), steps)
        state = fitted.state
        failed |= set(fitted.failed)
        if number in observed:
            rows = np.setdiff1d(np.arange(len(is_in)), sorted(failed)).astype(np.int32)
            answers, mute = _answers(learner, state, rows, x, federation.num_classes)
            has_answered = ~np.isin(rows, list(mute))
            failed |= set(mute)
            recorded[number] = Shadows(is_in[rows[has_answered]], answers[has_answered])
    return recorded


def _answers(
    learner: Learner, state: object, ids: np.ndarray, x: np.ndarray, num_classes: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Probabilities [K, n, C], or one-hot labels, and the clients without an answer."""
    if learner.predict_proba is not None:
        return answers_of(learner, "predict_proba", state, ids, x, num_classes)
    labels, silent = answers_of(learner, "predict", state, ids, x, num_classes)
    return (labels[..., None] == np.arange(num_classes)).astype(np.float32), silent


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
    _read: dict[str, dict[int, Shadows]] = field(default_factory=dict)

    def of(self, seen: Observation, number: int) -> dict[str, Shadows]:
        """Return the shadows for a message of a round by their kind (`jaxfed.audit.attacks.SHADOWS`)."""
        if not self.config.audit.shadows:
            return {}
        known = {"played": self._stored(self._played(seen.message, number)).get(number)}
        if methods.needs(self.config, self.name).trains:
            # Counts come from models of one client each, even where only their sum is observed.
            of_all = seen.kind != "counts" and (seen.client < 0).any()
            trained = self._trained(self._size_of_all() if of_all else self._size_of_one())
            known = {"own_labels": trained.get(min(number, self.training()[0]))} | known
        return {how: shadows for how, shadows in known.items() if shadows is not None}

    def play(self, views: Sequence[View], number: int) -> None:
        """Run the method itself for every shadow, for the views that support it, and save the results."""
        is_in = self._memberships(self._size_of_all())
        x, y = (values[self.targets.examples] for values in (self.federation.x, self.federation.y))
        for view in views:
            if view.shadows is not None:
                shadows = Shadows(is_in, np.asarray(view.shadows(x, y, is_in), np.float32))
                self.files.save_shadows(self._played(view.message, number), {number: shadows})

    def training(self) -> tuple[int, int]:
        """Return the rounds of a method that trains, and the steps of a client in each of them."""
        config, training = self.config, self._own_config().training
        keywords = methods.all_keywords(config, self.name)
        most = self.federation.max_labels
        steps = keywords.get("steps", keywords.get("revisit_steps")) or training.local_steps
        steps = steps or training.epochs * math.ceil(most / (training.batch_size or most))
        return min(config.rounds, keywords.get("teacher_rounds", config.rounds)), int(steps)

    def identity(self) -> str:
        """Return a digest of everything that determines the shadows' training within one repeat."""
        seen = self._own_config()
        has_learners = methods.needs(seen, self.name).has_learners
        described = {
            "training": seen.training.to_dict(),
            "model": seen.model.to_dict(),
            "learner": seen.learner.to_dict() if has_learners else {"name": "network", "names": ()},
            "rounds, steps": self.training(),
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]

    def _trained(self, size: int) -> dict[int, Shadows]:
        """Return shadow predictions from their file; train the shadows and save the file if it is missing."""
        name = f"{self.repeat}-{self.identity()}-{size}"
        if not self._stored(name):
            what = f"{self.config.audit.shadows} shadow models of {size} examples"
            self.progress.working_on(f"repeat {self.repeat + 1} {what}")
            logging.info("audit: %s: %s", what, name)
            rounds, steps = self.training()
            self._read[name] = shadow_answers(
                self._learner(),
                self.federation,
                self.targets,
                self._memberships(size),
                rounds=rounds,
                steps=steps,
                observed=sorted({min(one, rounds) for one in self.rounds}),
                key=self._key(),
            )
            self.files.save_shadows(name, self._read[name])
        return self._read[name]

    def _stored(self, name: str) -> dict[int, Shadows]:
        """Return what a file of shadows has, read once; nothing where there is no file."""
        if name not in self._read:
            self._read[name] = self.files.shadows(name)
        return self._read[name]

    def _played(self, message: str, number: int) -> str:
        return f"{self.name}-{self.repeat}-{number}-{message}"

    def _size_of_one(self) -> int:
        sizes = np.bincount(self.targets.client[self.targets.is_member])
        return round(float(np.mean(sizes[sizes > 0])))

    def _size_of_all(self) -> int:
        return int(self.targets.is_member.sum())

    def _key(self) -> jax.Array:
        key = jax.random.key(self.config.seed + self.repeat)
        return jax.random.fold_in(key, Stream.SHADOW_MODELS)

    def _memberships(self, size: int) -> np.ndarray:
        seed, number = self.config.seed + self.repeat, self.config.audit.shadows
        return shadow_memberships(len(self.targets.example), size, number, seed)

    def _learner(self) -> Learner:
        """Return the method's learner of clients; of a method that averages models, networks."""
        seen = self._own_config()
        made = Ingredients(seen, self.federation, self.repeat, Execution(seen.execution.workers))
        if methods.needs(seen, self.name).has_learners:
            return made.learner()
        return LEARNERS["network"](training=made.training())

    def _own_config(self) -> ConfigDict:
        """Return the config with the method's own training."""
        return methods.with_own_training(self.config, self.name)
