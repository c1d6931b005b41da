"""Refuse keys that a user has set and that have no effect.

    config = file.read(spec)
    check_given(config, ["federation.labeled_fraction=0.05"])

A key is in effect in a run if a method of the run reads it (`jaxfed.config.checks.fingerprint`) and the
conditions in its hint hold (`jaxfed.settings.when`). An override is in effect if it changes a value of such a
key: of the overridden key, or of one that refers to it. Two kinds of override are always accepted: those that
change nothing, and those of keys for execution, deployment and monitoring (`_OF_THE_RUN`, `_WAYS_TO_RUN`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.checks.check import check
from jaxfed.config.checks.fingerprint import keys_seen_by
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import CANDIDATES, setting_of, with_overrides
from jaxfed.errors import UsageError

# Keys for execution, monitoring and display of a run with any method.
_OF_THE_RUN = (
    *("algorithm", "baselines", "paper_table", "dataset.root"),
    *("evaluate_every", "evaluate_test", "checkpoint_every"),
)
_WAYS_TO_RUN = ("execution", "deployment")


def check_given(
    config: ConfigDict, overrides: Sequence[str], *, audited: bool = False
) -> tuple[str, ...]:
    """Check that every override of the user is in effect in the run.

    Args:
        config: the config without the overrides, such as a file's, with references between keys.
        overrides: `KEY=VALUE`, as the user gave them; the config with them is already checked.
        audited: True if membership inference runs, which reads the section `audit`.

    Returns:
        The overrides that change something; with some data one of them may still have no effect
        (`Simulation.check_given`).

    Raises:
        UsageError: names the first key that nothing reads, its value, and the reason.
    """
    given = Given(audited)
    for line in given.unread(config, overrides).values():
        raise UsageError(line)
    return tuple(text for text in overrides if _key(text) in given.read)


class Given:
    """Record of overrides that are in effect in one experiment or at any point of a sweep.

    Attributes:
        read: the keys that have been in effect so far.
    """

    def __init__(self, audited: bool = False) -> None:
        self._audited = audited
        self.read: set[str] = set()
        self._unread: dict[str, str] = {}

    def unread(self, base: ConfigDict, overrides: Sequence[str]) -> dict[str, str]:
        """Add one experiment; return key -> error line for keys without effect in any experiment so far."""
        left = [text for text in overrides if _key(text) not in self.read]
        if not left:
            return self._unread
        run = Run(with_overrides(base, overrides), self._audited)
        for text in left:
            others = [other for other in overrides if other is not text]
            changed, counts = self._effect(run, base, others)
            if counts:
                self.read.add(_key(text))
                self._unread.pop(_key(text), None)
            elif changed:
                line = f"config.{text}: {run.objection(_key(text))}"
                self._unread.setdefault(_key(text), line)
        return self._unread

    def _effect(self, run: Run, base: ConfigDict, others: Sequence[str]) -> tuple[bool, bool]:
        """Return whether the config differs without this override, and if so in a key that is in effect."""
        try:
            without = with_overrides(base, others)
            before = dict(flatten(without.to_dict()))
            there = {*run.values, *before}
            changed = {key for key in there if run.values.get(key, ...) != before.get(key, ...)}
            if all(map(run.objection, changed)):
                check(without)
                there = Run(without, self._audited)
                return bool(changed), not all(map(there.objection, changed))
        except UsageError:  # other settings depend on the override
            pass
        return True, True


class Run:
    """A checked config, and the keys that its methods read.

    Attributes:
        values: dotted key -> value.
    """

    def __init__(self, config: ConfigDict, audited: bool = False) -> None:
        self._config, self._audited = config, audited
        self.values = dict(flatten(config.to_dict()))
        self._seen = {name: keys_seen_by(config, name) for name in methods.chosen(config)}

    def objection(self, key: str) -> str:
        """Return why a key has no effect, and what to write instead; "" if it has one."""
        names, section = ", ".join(self._seen), key.partition(".")[0]
        if key in _OF_THE_RUN or section in _WAYS_TO_RUN:
            return ""
        if section == "audit":
            return "" if self._audited else "launch.audit alone reads it; leave it out"
        reasons = [self._unmet(seen, key) for seen in self._seen.values() if key in seen]
        if reasons:
            return "" if "" in reasons else reasons[0]
        if section in (*ALGORITHMS, *methods.variants(self._config)) and section not in self._seen:
            return (
                f"{section!r} is not among the methods of this run ({names}); leave it out, or add the "
                "method to baselines"
            )
        if key == "rounds":
            return f"{names} label in one round of all clients; leave it out, or set a cohort_size"
        return f"no method of this run reads it ({names}); leave it out"

    def _unmet(self, seen: Mapping[str, tuple[str, Any]], key: str) -> str:
        """Return which condition in a key's hint does not hold for a method; "" if all do."""
        values, (key, _) = dict(seen.values()), seen[key]
        key = "selection.folds" if key.startswith(CANDIDATES) else key
        setting, section = setting_of(self._config, key), key.rpartition(".")[0]
        for condition in setting.conditions if setting else ():
            near, instead = f"{section}.{condition.key}".lstrip("."), condition.or_
            other = condition.key if "." in condition.key else near
            if other not in values or condition.holds(values[other]):
                continue
            if instead is None or not instead.holds(values.get(instead.key)):
                where = next(leaf for leaf, (of_all, _) in seen.items() if of_all == other)
                return (
                    f"nothing reads it with {where}={values[other]!r}; leave it out, or set {where} to "
                    f"{condition.text}"
                )
        return ""


def _key(text: str) -> str:
    return text.partition("=")[0]
