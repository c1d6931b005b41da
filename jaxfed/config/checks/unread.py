"""Refuse keys that a user has set and that have no effect.

    check_given(partial(file.load, spec), ["federation.labeled_fraction=0.05"])

A key is in effect in a run if a method of the run reads it (`jaxfed.config.checks.fingerprint`) and other
keys do not disable it (`COUNTS_WITH`). An override is in effect if it changes the value of such a key: its
own, or one that refers to it. Two kinds of override are always accepted: those that change nothing, and those
of keys for execution, deployment and monitoring (`_OF_THE_RUN`, `_WAYS_TO_RUN`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.build.networks import PRETRAINED
from jaxfed.config.checks.check import check
from jaxfed.config.checks.fingerprint import keys_seen_by
from jaxfed.config.data.partitioning import FIELDS, schemes_with
from jaxfed.config.keys import flatten
from jaxfed.config.open_sections import CANDIDATES
from jaxfed.errors import UsageError
from jaxfed.federation.clock.settings import Clock
from jaxfed.training.server.server_optimizers import SECOND_MOMENTS

Load = Callable[[Sequence[str]], ConfigDict]  # overrides `KEY=VALUE` -> the config with them

# Keys for execution, monitoring and display of a run with any method.
_OF_THE_RUN = (
    *("algorithm", "baselines", "paper_table", "dataset.root"),
    *("evaluate_every", "evaluate_test", "checkpoint_every"),
)
_WAYS_TO_RUN = ("execution.", "deployment.")
_OF_AN_AUDIT = "audit."


class Values(NamedTuple):
    """Values of a key that put another one into effect, and their text in errors."""

    allowed: str
    holds: Callable[[Any], bool]


def _any_of(*values: Any) -> Values:
    return Values(" or ".join(map(repr, values)), lambda value: value in values)


_SOME = Values("a number above 0", lambda value: value > 0)
_COHORTS = {"cohort_size": _SOME}
_TIMED = {"clock.seconds_per_example": _SOME}
_LEARNED = {"preprocessing.kind": _any_of("federated_features")}
_PRETRAINED = {"preprocessing.kind": _any_of("pretrained")}
_ADAPTIVE = {"training.server_optimizer": _any_of(*SECOND_MOMENTS)}
_AT_SERVER = {"federation.labels_at": _any_of("server")}
_CHOSEN = {"selection.settings": _any_of("cross_validated")}
_PAILLIER = {"hamming": _any_of("phe")}

COUNTS_WITH: dict[str, Mapping[str, Values]] = {
    "sampling": _COHORTS,
    "dataset.test_fraction": {"dataset.test_size": _any_of(0)},
    "dataset.validation_measure": {"dataset.validation_fraction": _SOME},
    "preprocessing.rounds": _LEARNED,
    "preprocessing.cohort_size": _LEARNED,
    "preprocessing.network": _PRETRAINED,
    "preprocessing.weights": _PRETRAINED,
    "preprocessing.image_size": _PRETRAINED,
    "preprocessing.components": _PRETRAINED,
    "preprocessing.views": _PRETRAINED,
    **{
        f"federation.{key}": {"federation.partition": _any_of(*schemes)}
        for key in FIELDS
        if (schemes := schemes_with(key))
    },
    "federation.quantity_parameter": {"federation.quantity": _any_of("dirichlet")},
    "federation.skew": {
        "federation.partition": Values("another scheme", lambda scheme: scheme != "iid")
    },
    "federation.labeled_fraction": {
        "federation.num_labeled": _any_of(0),
        "federation.labeled_per_class": _any_of(0),
    },
    "federation.public_fraction": {
        "federation.public_size": _any_of(0),
        "federation.public_dataset": _any_of(""),
    },
    **{f"clock.{f.name}": _TIMED for f in fields(Clock) if f.name != "seconds_per_example"},
    "clock.online_share": {**_TIMED, "clock.availability": _any_of("diurnal")},
    "training.staleness_exponent": {"training.concurrency": _SOME},
    "training.schedule_rounds": {"training.schedule": _any_of("cosine")},
    # With local steps it only determines how many times a client's examples are shuffled.
    "training.epochs": {"training.local_steps": _any_of(0)},
    "training.unlabeled_ratio": {"training.batches": _any_of("paired")},
    "training.server_beta1": _ADAPTIVE,
    "training.server_beta2": _ADAPTIVE,
    "training.server_tau": _ADAPTIVE,
    "training.server_epochs": _AT_SERVER,
    "training.server_batch_size": _AT_SERVER,
    "selection.folds": _CHOSEN,
    "selection.measure": _CHOSEN,
    "key_bits": _PAILLIER,
    "compared_by": {"compared_clients": _SOME},
}
"""Key -> with which values of others it counts. `training.KEY` is a method's own; KEY alone is a method's
keyword, or one of the section that its labels are found by."""


def check_given(load: Load, overrides: Sequence[str], *, audited: bool = False) -> tuple[str, ...]:
    """Check that every override of the user is in effect in the run.

    Args:
        load: builds the config for a list of overrides.
        overrides: `KEY=VALUE`, as the user gave them; the config with them is already checked.
        audited: True if membership inference runs, which reads the section `audit`.

    Returns:
        The overrides that change something; with some data one of them may still have no effect
        (`Simulation.check_given`).

    Raises:
        UsageError: names the first key that nothing reads, its value, and the reason.

    Cost: one additional config for each override, and a check of it for each refused one.
    """
    given = Given(audited)
    for line in given.unread(load, overrides).values():
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

    def unread(self, load: Load, overrides: Sequence[str]) -> dict[str, str]:
        """Add one experiment; return key -> error line for keys without effect in any experiment so far."""
        left = [text for text in overrides if _key(text) not in self.read]
        if left:
            config = load(overrides)
            values = dict(flatten(config.to_dict()))
            views = views_of(config)
            counting = counting_keys(config, views, audited=self._audited)
            for text in left:
                without = _without(load, overrides, text)
                if without is None or self._counts(counting, values, without):
                    self.read.add(_key(text))
                    self._unread.pop(_key(text), None)
                elif dict(flatten(without.to_dict())) != values:
                    self._unread.setdefault(_key(text), objection(config, views, text))
        return self._unread

    def _counts(self, counting: set[str], values: Mapping[str, Any], without: ConfigDict) -> bool:
        """True if the override changes a key that is in effect in the config with or without it."""
        before = dict(flatten(without.to_dict()))
        changed = {
            key
            for key in {*values, *before}
            if key not in values or key not in before or values[key] != before[key]
        }
        if not changed or not counting.isdisjoint(changed):
            return bool(changed)
        try:
            check(without)
        except UsageError:  # other settings depend on the override
            return True
        there = counting_keys(without, views_of(without), audited=self._audited)
        return not there.isdisjoint(changed)


def views_of(config: ConfigDict) -> dict[str, dict[str, tuple[str, Any]]]:
    """Return method of the run -> `keys_seen_by` of a checked config."""
    return {name: keys_seen_by(config, name) for name in methods.chosen(config)}


def counting_keys(
    config: ConfigDict,
    views: Mapping[str, Mapping[str, tuple[str, Any]]],
    *,
    audited: bool = False,
) -> set[str]:
    """Return all keys in effect for a method of the run, or for the run as a whole."""
    flat = dict(flatten(config.to_dict()))
    found = {key for key in flat if key in _OF_THE_RUN or key.startswith(_WAYS_TO_RUN)}
    if audited:
        found |= {key for key in flat if key.startswith(_OF_AN_AUDIT)}
    for seen in views.values():
        values = dict(seen.values())
        found |= {
            key
            for key, (of_all, _) in seen.items()
            if not key.startswith(_OF_AN_AUDIT) and not any(_against(of_all, values))
        }
    return found


def _against(key: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Values]]:
    """Yield the keys that disable this one, with the values that would put it into effect."""
    if key == "preprocessing.weights" and values.get("training.initial_model") == PRETRAINED:
        return  # networks that start from released weights read it too
    section, _, leaf = key.rpartition(".")
    conditions = _CHOSEN if key.startswith(CANDIDATES) else COUNTS_WITH.get(key)
    beside = ""
    if conditions is None:
        conditions, beside = COUNTS_WITH.get(leaf, {}), f"{section}."
        if not section:
            return
    for other, wanted in conditions.items():
        if f"{beside}{other}" in values and not wanted.holds(values[f"{beside}{other}"]):
            yield f"{beside}{other}", wanted


def _without(load: Load, overrides: Sequence[str], text: str) -> ConfigDict | None:
    """Return the config without one override; None if other overrides depend on it."""
    try:
        return load([other for other in overrides if other is not text])
    except UsageError:
        return None


def objection(
    config: ConfigDict, views: Mapping[str, Mapping[str, tuple[str, Any]]], text: str
) -> str:
    """Return the error line for an override that nothing reads: the reason, and what to write instead."""
    key, names = _key(text), ", ".join(views)
    section = key.partition(".")[0]
    for seen in views.values():
        if key in seen:
            values = dict(seen.values())
            for other, wanted in _against(seen[key][0], values):
                where = next((leaf for leaf, (of_all, _) in seen.items() if of_all == other), other)
                return (
                    f"config.{text}: nothing reads it with {where}={values[other]!r}; leave it out, or set "
                    f"{where} to {wanted.allowed}"
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
