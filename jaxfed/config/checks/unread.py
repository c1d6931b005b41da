"""Refuse keys that a user has set and that have no effect.

    config = file.read(spec)
    check_given(config, ["federation.labeled_fraction=0.05"])

A key is in effect in a run if a method of the run reads it (`jaxfed.config.checks.fingerprint`) and the
conditions of its declaration hold (`jaxfed.settings.when`). An override is in effect if it changes the value
of such a key: its own, or one that refers to it. Two kinds of override are always accepted: those that change
nothing, and those of keys for execution, deployment and monitoring (`_OF_THE_RUN`, `_WAYS_TO_RUN`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.checks.check import check
from jaxfed.config.checks.fingerprint import keys_seen_by
from jaxfed.config.keys import flatten
from jaxfed.config.open_sections import CANDIDATES
from jaxfed.config.overrides import setting_of, with_overrides
from jaxfed.errors import UsageError
from jaxfed.settings import When

Views = Mapping[str, Mapping[str, tuple[str, Any]]]  # method of the run -> `keys_seen_by`

# Keys for execution, monitoring and display of a run with any method.
_OF_THE_RUN = (
    *("algorithm", "baselines", "paper_table", "dataset.root"),
    *("evaluate_every", "evaluate_test", "checkpoint_every"),
)
_WAYS_TO_RUN = ("execution.", "deployment.")
_OF_AN_AUDIT = "audit."


def check_given(
    config: ConfigDict, overrides: Sequence[str], *, audited: bool = False
) -> tuple[str, ...]:
    """Check that every override of the user is in effect in the run.

    Args:
        config: the config without them, such as a file's, with references between keys.
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
        if left:
            config = with_overrides(base, overrides)
            views = views_of(config)
            counting = counting_keys(config, views, audited=self._audited)
            for text in left:
                others = [other for other in overrides if other is not text]
                changed, counts = self._effect(config, counting, base, others)
                if counts:
                    self.read.add(_key(text))
                    self._unread.pop(_key(text), None)
                elif changed:
                    self._unread.setdefault(_key(text), objection(config, views, text))
        return self._unread

    def _effect(
        self, config: ConfigDict, counting: set[str], base: ConfigDict, others: Sequence[str]
    ) -> tuple[bool, bool]:
        """Return whether the config is another with the other overrides alone, and in a key that counts.

        Keys count that do so with or without the override.
        """
        try:
            without = with_overrides(base, others)
            values, before = (dict(flatten(each.to_dict())) for each in (config, without))
            changed = {
                key
                for key in {*values, *before}
                if key not in values or key not in before or values[key] != before[key]
            }
            if not changed or not counting.isdisjoint(changed):
                return bool(changed), bool(changed)
            check(without)
        except UsageError:  # other settings depend on the override
            return True, True
        there = counting_keys(without, views_of(without), audited=self._audited)
        return True, not there.isdisjoint(changed)


def views_of(config: ConfigDict) -> Views:
    """Return method of the run -> `keys_seen_by` of a checked config."""
    return {name: keys_seen_by(config, name) for name in methods.chosen(config)}


def counting_keys(config: ConfigDict, views: Views, *, audited: bool = False) -> set[str]:
    """Return all keys in effect for a method of the run, or for the run as a whole."""
    free = (*_WAYS_TO_RUN, _OF_AN_AUDIT) if audited else _WAYS_TO_RUN
    flat = dict(flatten(config.to_dict()))
    found = {key for key in flat if key in _OF_THE_RUN or key.startswith(free)}
    for seen in views.values():
        values = dict(seen.values())
        found |= {
            key
            for key, (of_all, _) in seen.items()
            if not key.startswith(_OF_AN_AUDIT) and not any(_unmet(config, of_all, values))
        }
    return found


def _unmet(config: ConfigDict, key: str, values: Mapping[str, Any]) -> Iterator[tuple[str, When]]:
    """Yield the keys that disable this one, each with the condition that does not hold."""
    key = "selection.folds" if key.startswith(CANDIDATES) else key
    setting, section = setting_of(config, key), key.rpartition(".")[0]
    for condition in setting.conditions if setting else ():
        other = condition.key if "." in condition.key else f"{section}.{condition.key}".lstrip(".")
        if other in values and not condition.holds(values[other]):
            instead = condition.or_
            if instead is None or not instead.holds(values.get(instead.key)):
                yield other, condition


def objection(config: ConfigDict, views: Views, text: str) -> str:
    """Return the error line for an override that nothing reads: the reason, and what to write instead."""
    key, names = _key(text), ", ".join(views)
    section = key.partition(".")[0]
    for seen in views.values():
        if key in seen:
            values = dict(seen.values())
            for other, condition in _unmet(config, seen[key][0], values):
                where = next((leaf for leaf, (of_all, _) in seen.items() if of_all == other), other)
                return (
                    f"config.{text}: nothing reads it with {where}={values[other]!r}; leave it out, or set "
                    f"{where} to {condition.text}"
                )
    if key.startswith(_OF_AN_AUDIT):
        return f"config.{text}: launch.audit alone reads it; leave it out"
    if section in (*ALGORITHMS, *methods.variants(config)) and section not in views:
        return (
            f"config.{text}: {section!r} is not among the methods of this run ({names}); leave it out, or "
            "add the method to baselines"
        )
    if key == "rounds":
        return f"config.{text}: {names} label in one round of all clients; leave it out, or set a cohort_size"
    return f"config.{text}: no method of this run reads it ({names}); leave it out"


def _key(text: str) -> str:
    return text.partition("=")[0]
