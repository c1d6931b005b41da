"""Shadow models of one method and repeat, trained on first use and cached in files.

Methods with the same shadows share them (`jaxfed.experiment.audit.shadow_plans`). There are three kinds:

    own_labels   models trained on their own labels alone; every method that trains has them
    taught       as many more on the same examples, which also follow the instructions of the attacked run;
                 only where that run taught its clients by public targets
    played       results of the method itself on other examples: its own labelings where it can be repeated
                 for every shadow (`View.shadows`), and students of teacher ensembles for PATE
                 (`jaxfed.audit.distilled_shadows`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import jax
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.audit import (
    AuditTargets,
    Shadows,
    Sighting,
    shadow_answers,
    shadow_memberships,
    student_answers,
)
from jaxfed.experiment.audit.audit_files import AuditFiles
from jaxfed.experiment.audit.shadow_plans import (
    ShadowPlan,
    StudentPlan,
    shadow_plan,
    student_plan,
    taught_plan,
)
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.federation.attack_surface import View
from jaxfed.federation.clients import Federation
from jaxfed.random_streams import Stream


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

    def of(self, seen: Sighting, number: int) -> dict[str, Shadows]:
        """Return the shadows for a message of a round by their kind (`jaxfed.audit.attacks.SHADOWS`)."""
        # Counts come from models of one client each, even where only their sum is observed.
        of_all = seen.kind != "counts" and (seen.client < 0).any()
        size = self._size_of_all() if of_all else self._size_of_one()
        known: dict[str, Shadows] = {}
        for how, plan in self._plans.items():
            said = self._said(how, plan, size).get(min(number, plan.rounds))
            known |= {} if said is None else {how: said}
        if self._students is not None and seen.message == self._students.message:
            played = self._said_by_students(self._students).get(min(number, self._students.rounds))
            return known if played is None else {**known, "played": played}
        name = self._played(seen.message, number)
        if self.config.audit.shadows and name not in self._made:
            self._made[name] = self.files.shadows(name) or {}
        played = self._made.get(name, {}).get(number)
        return known if played is None else {**known, "played": played}

    @cached_property
    def _plans(self) -> dict[str, ShadowPlan]:
        """Training plan of each kind of shadow model."""
        if not self.config.audit.shadows:
            return {}
        of = self.config, self.name, self.federation, self.repeat
        plan = shadow_plan(*of)
        told = self.files.instructions(self.name, self.repeat)
        plans = {"own_labels": plan, "taught": taught_plan(*of, told) if told else None}
        return {how: plan for how, plan in plans.items() if plan is not None}

    @cached_property
    def _students(self) -> StudentPlan | None:
        """Training plan of the shadow students; None if the method has no student."""
        if not self.config.audit.shadows:
            return None
        return student_plan(self.config, self.name, self.federation, self.repeat)

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

    def _said(self, how: str, plan: ShadowPlan, size: int) -> dict[int, Shadows]:
        like = f", taught what {self.name} taught its clients" if how == "taught" else ""
        number = self.config.audit.shadows
        return self._trained(
            f"{self.repeat}-{plan.identity}-{size}",
            f"{number} shadow models of {size} examples{like}",
            partial(shadow_answers, plan.learner, instructions=plan.instructions),
            size,
            plan.rounds,
        )

    def _said_by_students(self, plan: StudentPlan) -> dict[int, Shadows]:
        size, number = self._size_of_all(), self.config.audit.shadows
        return self._trained(
            f"{self.repeat}-{plan.identity}-{size}-students",
            f"{number} shadow students, of {plan.schooling.voters} teachers each",
            partial(student_answers, plan.teacher, plan.student, schooling=plan.schooling),
            size,
            plan.rounds,
        )

    def _trained(
        self,
        name: str,
        what: str,
        train: Callable[..., dict[int, Shadows]],
        size: int,
        rounds: int,
    ) -> dict[int, Shadows]:
        """Return shadow predictions from their file; train the shadows and save the file if it is missing."""
        if name not in self._made:
            there = self.files.shadows(name)
            if there is None:
                self.progress.working_on(f"repeat {self.repeat + 1} {what}")
                logging.info("audit: %s: %s", what, name)
                seed = self.config.seed + self.repeat
                there = train(
                    self.federation,
                    self.targets,
                    self._memberships(size),
                    observed=sorted({min(one, rounds) for one in self.rounds}),
                    key=jax.random.fold_in(jax.random.key(seed), Stream.SHADOW_MODELS),
                )
                self.files.save_shadows(name, there)
            self._made[name] = there
        return self._made[name]

    def _memberships(self, size: int) -> np.ndarray:
        seed, number = self.config.seed + self.repeat, self.config.audit.shadows
        return shadow_memberships(len(self.targets.example), size, number, seed)
