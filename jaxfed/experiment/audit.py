"""Membership inference against every method of an experiment, on the same clients: what is found, from files.

    audit/sightings/METHOD-REPEAT-ROUND.npz   what messages of the round say of the targets; written in it
    audit/shadows/REPEAT-NAME.npz             what shadow models say of them

Both kinds of arrays are the same whenever they are made, so that a run that was killed goes on from those
that are there. Shadows are shared by the methods whose shadows are the same (`jaxfed.config.attacker`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.audit import (
    Attacked,
    Shadows,
    Sighting,
    Targets,
    Verdict,
    attacks,
    drawn_targets,
    each,
    messages,
    over_repeats,
    shadow_answers,
    shadow_memberships,
    sightings,
    strongest,
)
from jaxfed.config import methods
from jaxfed.config.attacker import ShadowPlan, shadow_plan
from jaxfed.config.simulation import Simulation
from jaxfed.errors import Unresumable, UsageError
from jaxfed.experiment.loop import Played
from jaxfed.experiment.progress import Progress
from jaxfed.experiment.records import audit_file
from jaxfed.experiment.workdir import Workdir
from jaxfed.federation.clients import Federation
from jaxfed.host import storage

STRONGEST = "strongest"
_NO_AUDIT = "its rounds were run without an audit, which has to see what they send"
_SHADOWS = 0x73686164
_Key = tuple[str, str, int, str]  # method, message, round, attack; of all of them "" and -1


@dataclass
class Audit:
    """The audit of one experiment.

    Attributes:
        config: resolved and checked.
        simulation: gives each repeat its clients.
        workdir: the experiment's.
        progress: told of what takes long.
    """

    config: ConfigDict
    simulation: Simulation
    workdir: Workdir
    progress: Progress
    _targets: dict[int, Targets] = field(default_factory=dict)

    @cached_property
    def rounds(self) -> tuple[int, ...]:
        """Those whose messages are looked at."""
        return tuple(sorted(set(self.config.audit.rounds))) or (int(self.config.rounds),)

    def check(self, repeat: int, dealt: Federation) -> None:
        """Draw the targets of a repeat, before anything is made.

        Raises:
            UsageError: too little is held out, or nobody has labels.
        """
        if self.config.federation.test == "clients":
            raise UsageError(
                "config.federation.test='clients': an audit asks about examples that nobody holds, too; "
                "allowed is 'central'"
            )
        self._targets_of(repeat, dealt)

    def observe(self, played: Played) -> None:
        """Look at the messages of a round, if it is one of those; its last for one past that."""
        looked_at = {min(number, played.last_round) for number in self.rounds}
        if played.round not in looked_at or played.algorithm.views is None:
            return
        targets = self._targets_of(played.repeat, played.federation)
        views = played.algorithm.views(played.before, played.after, played.cohort, played.key)
        _save_sightings(
            self._sightings(played.name, played.repeat, played.round),
            sightings(views, played.federation, targets),
        )

    def results(self, algorithms: Mapping[str, Any]) -> dict[str, Any]:
        """Attack what was seen.

        Args:
            algorithms: of the experiment's summary.

        Returns:
            What reports write: `methods`, a row each, and `messages` and `attacks` of these.

        Raises:
            UsageError: messages of rounds that were played without an audit.
        """
        found: dict[_Key, list[Verdict]] = {}
        leaves: dict[tuple[str, str], bool] = {}
        asked: dict[str, list[float]] = {}
        for repeat in range(self.config.num_repeats):
            seed = self.config.seed + repeat
            federation = self.simulation.federation(
                seed, self.progress.prepared, self.workdir.preprocessing(repeat)
            )
            targets = self._targets_of(repeat, federation)
            label = federation.y[targets.examples]
            for name in methods.chosen(self.config):
                seen = self._seen(name, repeat)
                if not seen:
                    continue
                known = _Known(self, name, repeat, federation, targets)
                self.progress.working_on(f"repeat {repeat + 1} attacks on {name}")
                attacked = attacks(seen, targets, label, known.shadows)
                leaves |= {(name, one.message): one.leaves for one in attacked}
                leaves[name, ""] = any(one.leaves for one in attacked)
                for key, verdict in _judged(name, attacked, targets.is_member, seed):
                    found.setdefault(key, []).append(verdict)
                asked.setdefault(name, []).append(_accuracy(seen, targets, label))
        rows = [_row(key, over_repeats(found[key])) for key in found]
        for row in rows:
            row["leaves"] = leaves[row["method"], row["message"]]
        return {
            "methods": [
                self._of_method(name, rows, algorithms.get(name, {}), asked.get(name))
                for name in methods.chosen(self.config)
            ],
            "messages": [
                row for row in rows if row["message"] and row["attack"].startswith(STRONGEST)
            ],
            "attacks": [row for row in rows if row["round"] >= 0],
            "rounds": self.rounds,
            "shadows": self.config.audit.shadows,
        }

    def _of_method(
        self,
        name: str,
        rows: list[dict[str, Any]],
        metrics: Mapping[str, Any],
        asked: list[float] | None,
    ) -> dict[str, Any]:
        """A row: what the method is worth beside how vulnerable it is."""
        tested = metrics.get("test_accuracy", {}).get("values")
        values = [value for value in tested or asked or [] if value is not None]
        own = [row for row in rows if row["method"] == name and not row["message"]]
        return {
            "method": name,
            "accuracy": float(np.mean(values)) if values else None,
            "accuracy_spread": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "accuracy_on": "test" if tested else "asked" if asked else "",
            **(own[0] if own else {"attack": "", "leaves": False}),
        }

    def _targets_of(self, repeat: int, federation: Federation) -> Targets:
        if repeat not in self._targets:
            wanted = self.config.audit
            self._targets[repeat] = drawn_targets(
                federation,
                members=wanted.members,
                population=wanted.population,
                seed=self.config.seed + repeat,
            )
        return self._targets[repeat]

    def _sightings(self, name: str, repeat: int, number: int) -> Path:
        return self.workdir.audit / "sightings" / f"{name}-{repeat}-{number}.npz"

    def _seen(self, name: str, repeat: int) -> dict[int, list[Sighting]]:
        """Round -> what was seen of it; nothing of a method that shows nothing, or has diverged."""
        files = self._sightings(name, repeat, 0).parent.glob(f"{name}-{repeat}-*.npz")
        numbers = sorted(int(file.stem.rpartition("-")[2]) for file in files)
        there = {
            number: _load_sightings(self._sightings(name, repeat, number)) for number in numbers
        }
        return {number: seen for number, seen in there.items() if seen}


@dataclass
class _Known:
    """What the attacker of a method knows in one repeat: its shadows, by what they are shadows of."""

    audit: Audit
    name: str
    repeat: int
    federation: Federation
    targets: Targets
    _made: dict[int, dict[int, Shadows]] = field(default_factory=dict)

    @cached_property
    def plan(self) -> ShadowPlan | None:
        """How they are trained."""
        if not self.audit.config.audit.shadows:
            return None
        return shadow_plan(self.audit.config, self.name, self.federation, self.repeat)

    def shadows(self, seen: Sighting, number: int) -> Shadows | None:
        """Those for a message of a round."""
        if self.plan is None:
            return None
        # Counts are of models of one client each, whatever is seen of them.
        of_all = seen.kind != "counts" and (seen.client < 0).any()
        size = self._size_of_all() if of_all else self._size_of_one()
        number = min(number, self.plan.rounds)
        if size not in self._made:
            self._made[size] = self._of_size(self.plan, size)
        return self._made[size].get(number)

    def _size_of_one(self) -> int:
        sizes = np.bincount(self.targets.client[self.targets.is_member])
        return max(1, round(float(np.mean(sizes[sizes > 0]))))

    def _size_of_all(self) -> int:
        return int(self.targets.is_member.sum())

    def _of_size(self, plan: ShadowPlan, size: int) -> dict[int, Shadows]:
        wanted, targets = self.audit.config.audit, self.targets
        observed = sorted({min(number, plan.rounds) for number in self.audit.rounds})
        file = f"{self.repeat}-{plan.identity}-{size}.npz"
        path = self.audit.workdir.audit / "shadows" / file
        if not path.exists():
            self.audit.progress.working_on(
                f"repeat {self.repeat + 1} {wanted.shadows} shadow models of {size} examples"
            )
            seed = self.audit.config.seed + self.repeat
            is_in = shadow_memberships(len(targets.example), size, wanted.shadows, seed)
            said = shadow_answers(
                plan.learner(),
                self.federation,
                targets,
                is_in,
                rounds=plan.rounds,
                steps=plan.steps,
                observed=observed,
                key=jax.random.fold_in(jax.random.key(seed), _SHADOWS),
            )
            arrays = {
                f"{part}_{number}": array
                for number, shadows in said.items()
                for part, array in shadows._asdict().items()
            }
            _save(path, arrays)
        with np.load(path) as arrays:
            return {
                number: Shadows(arrays[f"is_in_{number}"], arrays[f"answers_{number}"])
                for number in observed
            }


def check_audited(place: Path) -> None:
    """Whether the finished run in a directory was audited.

    Raises:
        UsageError: it was not.
    """
    if not audit_file(place).exists():
        raise Unresumable(f"--workdir={place}: {_NO_AUDIT}")


def check_unplayed(workdir: Workdir) -> None:
    """Whether an audit can begin, or go on, in a workdir.

    Raises:
        UsageError: its rounds were played without one.
    """
    if not workdir.audit.exists() and workdir.read_metrics():
        raise Unresumable(f"--workdir={workdir.path}: {_NO_AUDIT}")
    workdir.audit.mkdir(exist_ok=True)


def _judged(
    name: str, attacked: list[Attacked], is_member: np.ndarray, seed: int
) -> list[tuple[_Key, Verdict]]:
    """Every attack; the strongest on each message, and on all that leave a client, or else on any."""
    rows: list[tuple[_Key, Verdict]] = [
        ((name, one.message, one.round, one.attack), each(one, is_member)) for one in attacked
    ]
    for message, some in messages(attacked).items():
        rows.append(((name, message, -1, STRONGEST), strongest(some, is_member, seed)))
    leaving = [one for one in attacked if one.leaves] or attacked
    return [*rows, ((name, "", -1, STRONGEST), strongest(leaving, is_member, seed))]


def _row(key: _Key, verdict: Verdict) -> dict[str, Any]:
    method, message, number, attack = key
    area, at_1, at_01 = verdict.vulnerability
    chosen = "; ".join(dict.fromkeys(_in_words(one) for one in verdict.attacks))
    return {
        "method": method,
        "message": message,
        "round": number,
        "attack": f"{attack}: {chosen}" if number < 0 else attack,
        "auc": area.auc,
        "low": area.low,
        "high": area.high,
        "spread": verdict.spread,
        "tpr_at_1_percent": at_1,
        "tpr_at_01_percent": at_01,
        "members": verdict.members,
        "others": verdict.others,
    }


def _in_words(chosen: tuple[str, int, str]) -> str:
    message, number, attack = chosen
    when = f"round {number}" if number else "all rounds"
    return f"{attack} on {message}, {when}"


def _accuracy(seen: Mapping[int, list[Sighting]], targets: Targets, label: np.ndarray) -> float:
    """Of the last message's answers to held-out targets: of methods that are tested on nothing else."""
    last = seen[max(seen)][0]
    others = np.flatnonzero(~targets.is_member)
    right = last.answers[:, others].argmax(axis=-1) == label[others]
    return float(right.mean())


def _save_sightings(path: Path, seen: list[Sighting]) -> None:
    _save(
        path,
        {
            f"{field}_{i}": np.asarray(v)
            for i, one in enumerate(seen)
            for field, v in one._asdict().items()
        },
    )


def _load_sightings(path: Path) -> list[Sighting]:
    with np.load(path) as arrays:
        number = len(arrays.files) // len(Sighting._fields)
        return [
            Sighting(
                str(arrays[f"message_{i}"]),
                str(arrays[f"kind_{i}"]),  # type: ignore[arg-type]
                bool(arrays[f"leaves_{i}"]),
                *(arrays[f"{field}_{i}"] for field in ("client", "answers", "norms")),
            )
            for i in range(number)
        ]


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.whole_file(path, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
