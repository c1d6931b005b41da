"""Membership inference against every method of an experiment, on the same clients and with results on disk.

    audit/observations/METHOD-REPEAT-ROUND.npz   predictions on the targets, from the messages of
                                              the round; written during the round
    audit/shadows/REPEAT-NAME.npz             predictions of the shadow models on the targets

All arrays are deterministic. A killed run therefore continues from the files that exist
(`jaxfed.audit.observations`, `jaxfed.audit.shadows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from ml_collections import ConfigDict

from jaxfed.audit.attacks import (
    SHADOWS,
    Attacked,
    Verdict,
    attacks,
    each,
    has_enough,
    over_repeats,
    strongest,
)
from jaxfed.audit.observations import (
    AuditFiles,
    AuditTargets,
    Observation,
    drawn_targets,
    observations,
)
from jaxfed.audit.report import FOLDER, read_audit, show_audit, write_audit
from jaxfed.audit.shadows import AuditShadows
from jaxfed.audit.surface import Views, surface_of
from jaxfed.audit.views import NOBODY, SEEN_BY
from jaxfed.config import methods
from jaxfed.config.assembly import Factory, make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.keys import refused
from jaxfed.errors import Unresumable, UsageError
from jaxfed.experiment.run.loop import Observed
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store.records import Run
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.host.parallel import processes
from jaxfed.privacy.membership import exact_interval

STRONGEST = "strongest"
_UNJUDGED = "too few targets to judge an attack"
_ENOUGH = 4  # members: two in each half of the targets
_NO_AUDIT = "its rounds were run without an audit, which has to see what they send"
_Key = tuple[
    str, str, int, str, str, str
]  # method, message, round, attack, its shadows, adversary; of all "" and -1


@dataclass
class Audit:
    """The audit of one experiment, attached to it by `jaxfed.api.run.execute`.

    Attributes:
        config: resolved and checked.
        simulation: gives each repeat its clients.
        workdir: the experiment's.
        progress: displays the long steps.
    """

    config: ConfigDict
    simulation: Simulation
    workdir: Workdir
    progress: RunProgress
    command: ClassVar[str] = "launch.audit"
    _targets: dict[int, AuditTargets] = field(default_factory=dict)
    _views: dict[tuple[str, int], Views | None] = field(default_factory=dict)

    @cached_property
    def files(self) -> AuditFiles:
        """Files that store the observations, instructions and shadow predictions."""
        return AuditFiles(self.workdir.path / FOLDER)

    @cached_property
    def rounds(self) -> tuple[int, ...]:
        """Rounds whose messages are attacked, in increasing order."""
        return tuple(sorted(set(self.config.audit.rounds))) or (int(self.config.rounds),)

    def check(self) -> None:
        """Draw the targets of the first repeat before anything is computed.

        Raises:
            UsageError: an audit does not go with a method or the test examples; too few examples are held
                out, or too few have labels.
        """
        if processes.are_several():
            raise UsageError("--coordinator: an audit runs in one process only")
        if max(self.config.audit.rounds, default=0) > self.config.rounds:
            allowed = f"use rounds from 1 to rounds={self.config.rounds}"
            raise refused(self.config, "audit.rounds", allowed=allowed)
        if self.config.federation.test == "clients":
            raise UsageError(
                "config.federation.test='clients': an audit asks about examples that nobody holds, too; "
                "use 'central'"
            )
        self._targets_of(0, self.simulation.partitioned(self.config.seed))

    def begin(self) -> None:
        """Create the folder of the audit in a workdir that is new, or was audited so far.

        Raises:
            UsageError: its rounds were played without an audit.
        """
        folder = self.workdir.path / FOLDER
        if not folder.exists() and self.workdir.read_metrics():
            raise Unresumable(f"--workdir={self.workdir.path}: {_NO_AUDIT}")
        folder.mkdir(exist_ok=True)

    def make(
        self, config: ConfigDict, name: str, federation: Federation, repeat: int, **how: Any
    ) -> FederatedAlgorithm:
        """Make a method, as `make_algorithm`, and remember what it shows."""

        def call(factory: Factory, keywords: dict[str, Any]) -> FederatedAlgorithm:
            algorithm = factory(**keywords)
            # Of several settings that cross-validation tries the first are the method's own.
            self._views.setdefault((name, repeat), surface_of(factory, keywords, algorithm))
            return algorithm

        return make_algorithm(config, name, federation, repeat, call=call, **how)

    def observe(self, observed: Observed) -> None:
        """Record the messages of a round if it is one of `rounds`.

        A number beyond the method's last round stands for its last round.
        """
        played, repeat = observed.played, observed.repeat
        views_of = self._views[observed.name, repeat]
        looked_at = {min(number, observed.last_round) for number in self.rounds}
        if played.round in looked_at and views_of is not None:
            federation = observed.federation
            targets = self._targets_of(repeat, federation)
            views = views_of(played)
            if self.config.audit.shadows:
                self._known(observed.name, repeat, federation).play(views, played.round)
            seen = observations(views, federation, targets)
            self.files.save_observations((observed.name, repeat, played.round), seen)
        if played.round == observed.last_round:
            del self._views[observed.name, repeat]

    def finish(self, run: Run) -> None:
        """Attack what was observed, and write the results into the folder of the audit."""
        assert run.summary is not None
        write_audit(self.results(run.summary["algorithms"]), run)

    @staticmethod
    def check_finished(workdir: Path) -> None:
        """Check that the finished run in a directory was audited, and print where.

        Raises:
            UsageError: it was not.
        """
        if read_audit(workdir) is None:
            raise Unresumable(f"--workdir={workdir}: {_NO_AUDIT}")
        print(f"the audit is in {workdir / FOLDER}")

    @staticmethod
    def present(progress: RunProgress, run: Run) -> None:
        """Print the table of vulnerabilities of a finished run."""
        show_audit(progress, run)

    def results(self, algorithms: Mapping[str, Any]) -> dict[str, Any]:
        """Run all attacks on the recorded observations.

        Args:
            algorithms: of the experiment's summary.

        Returns:
            The content of reports: `methods`, a row for each method and adversary; `messages`, the strongest
            attacks; and `attacks`, every attack.

        Raises:
            UsageError: messages of rounds that were played without an audit.
        """
        verdicts: dict[_Key, list[Verdict]] = {}
        asked: dict[str, list[float]] = {}
        for repeat in range(self.config.num_repeats):
            seed = self.config.seed + repeat
            federation = self.simulation.federation(
                seed, self.progress.prepared, self.workdir.preprocessing(repeat)
            )
            targets = self._targets_of(repeat, federation)
            label = federation.y[targets.examples]
            for name in methods.chosen(self.config):
                seen = self.files.observations(name, repeat)
                if not seen:
                    continue
                known = self._known(name, repeat, federation)
                self.progress.working_on(f"repeat {repeat + 1} attacks on {name}")
                attacked = attacks(seen, targets, label, known.of)
                attacked = self._with_enough(name, repeat, attacked, targets.is_member)
                for key, verdict in _judged(name, attacked, targets.is_member, seed).items():
                    if verdict is not None:
                        verdicts.setdefault(key, []).append(verdict)
                    else:
                        self.progress.note(
                            f"audit: {name}, repeat {repeat + 1}: too few targets to judge the strongest "
                            f"attack on {key[1] or f'messages that {key[-1]} has'}"
                        )
                asked.setdefault(name, []).append(_accuracy(seen, targets, label))
        rows = [_row(key, over_repeats(verdicts[key])) for key in verdicts]
        return {
            "methods": [
                row
                for name in methods.chosen(self.config)
                for row in self._of_method(name, rows, algorithms.get(name, {}), asked.get(name))
            ],
            "messages": [
                row for row in rows if row["message"] and row["attack"].startswith(STRONGEST)
            ],
            "attacks": [row for row in rows if row["round"] >= 0],
            "rounds": self.rounds,
            "shadows": self.config.audit.shadows,
        }

    def _with_enough(
        self, name: str, repeat: int, attacked: list[Attacked], is_member: np.ndarray
    ) -> list[Attacked]:
        """Return the attacks that can be judged; a note names the messages of the others."""
        left_out = [one for one in attacked if not has_enough(one, is_member)]
        seen = dict.fromkeys(f"{one.message} of round {one.round}" for one in left_out if one.round)
        if seen:
            self.progress.note(
                f"audit: {name}, repeat {repeat + 1}: attacks on {', '.join(seen)} are not judged; the "
                "clients that sent these have fewer than two members among the targets"
            )
        return [one for one in attacked if has_enough(one, is_member)]

    def _of_method(
        self,
        name: str,
        rows: list[dict[str, Any]],
        metrics: Mapping[str, Any],
        asked: list[float] | None,
    ) -> list[dict[str, Any]]:
        """Return a row for each adversary: the method's accuracy and its vulnerability.

        A method without a verdict has one row. Its `attack` is "" if nothing of it was observed.
        """
        tested = metrics.get("test_accuracy", {}).get("values")
        values = [value for value in tested or asked or [] if value is not None]
        of_method = [row for row in rows if row["method"] == name and not row["message"]]
        worth = {
            "method": name,
            "accuracy": float(np.mean(values)) if values else None,
            "accuracy_spread": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "accuracy_on": "test" if tested else "asked" if asked else "",
        }
        return [worth | row for row in of_method] or [
            worth | {"attack": _UNJUDGED if asked else "", "leaves": False, "adversary": ""}
        ]

    def _known(self, name: str, repeat: int, federation: Federation) -> AuditShadows:
        targets = self._targets_of(repeat, federation)
        return AuditShadows(
            self.config, self.files, self.progress, self.rounds, name, repeat, federation, targets
        )

    def _targets_of(self, repeat: int, federation: Federation) -> AuditTargets:
        if repeat not in self._targets:
            wanted = self.config.audit
            targets = drawn_targets(
                federation,
                members=wanted.members,
                population=wanted.population,
                seed=self.config.seed + repeat,
            )
            if (number := int(targets.is_member.sum())) < _ENOUGH:
                raise UsageError(
                    f"config.audit.members={wanted.members}{'' if wanted.members else ' (all)'}: clients "
                    f"have {number} labeled examples to attack in repeat {repeat + 1}, and an audit needs "
                    f"{_ENOUGH}; use more members of a client or more labeled examples"
                )
            self._targets[repeat] = targets
        return self._targets[repeat]


def _judged(
    name: str, attacked: list[Attacked], is_member: np.ndarray, seed: int
) -> dict[_Key, Verdict | None]:
    """Return the verdict of every attack, and of the strongest one on each message and of each adversary."""
    groups: dict[_Key, list[Attacked]] = {}
    for one in attacked:
        groups.setdefault((name, one.message, -1, STRONGEST, "", one.adversary), []).append(one)
    for adversary in dict.fromkeys(one.adversary for one in attacked):
        seen = [one for one in attacked if one.adversary in SEEN_BY[adversary]]
        groups[name, "", -1, STRONGEST, "", adversary] = seen
    return {
        **{
            (name, one.message, one.round, one.attack, one.shadows, one.adversary): each(
                one, is_member
            )
            for one in attacked
        },
        **{key: strongest(some, is_member, seed) for key, some in groups.items()},
    }


def _row(key: _Key, verdict: Verdict) -> dict[str, Any]:
    method, message, number, attack, shadows, adversary = key
    area = verdict.area
    low, high = exact_interval(round(verdict.tpr_at_none * verdict.members), verdict.members)
    chosen = "; ".join(dict.fromkeys(_in_words(one) for one in verdict.attacks))
    return {
        "method": method,
        "adversary": adversary,
        "leaves": adversary != NOBODY,
        "message": message,
        "round": number,
        "attack": f"{attack}: {chosen}" if number < 0 else attack,
        "shadows": shadows,
        "auc": area.auc,
        "low": area.low,
        "high": area.high,
        "spread": verdict.spread,
        "tpr_at_1_percent": verdict.tpr_at_1_percent,
        "tpr_at_none": verdict.tpr_at_none,
        "tpr_at_none_low": low,
        "tpr_at_none_high": high,
        "members": verdict.members,
        "others": verdict.others,
        "others_at_once": verdict.others_at_once,
    }


def _in_words(chosen: tuple[str, int, str, str]) -> str:
    """Describe an attack in words; shadows of the default kind, trained like single clients, are omitted."""
    message, number, attack, shadows = chosen
    when = f"round {number}" if number else "all rounds"
    by = f" by {shadows} shadows" if shadows not in ("", SHADOWS[0]) else ""
    return f"{attack}{by} on {message}, {when}"


def _accuracy(
    seen: Mapping[int, list[Observation]], targets: AuditTargets, label: np.ndarray
) -> float:
    """Accuracy of the last observed round on held-out targets, for methods without a test accuracy."""
    last = seen[max(seen)][0]
    others = np.flatnonzero(~targets.is_member)
    right = last.answers[:, others].argmax(axis=-1) == label[others]
    return float(right.mean())
