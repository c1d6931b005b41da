"""The keys of a config that the methods of a run read; keys that a user has set in vain are refused.

    config = file.read(spec)
    check_given(config, ["federation.labeled_fraction=0.05"])
    seen_by(config, "fedprox")              # equal for two configs with equal results of the method

A key is in effect in a run if a method of the run reads it (`keys_seen_by`) and the conditions in its hint
hold (`jaxfed.settings.when`). An override is in effect if it changes a value of such a key: of the overridden
key, or of one that refers to it. Two kinds of override are always accepted: those that change nothing, and
those of keys for execution, deployment and monitoring (`_OF_THE_RUN`, `_WAYS_TO_RUN`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.check import check
from jaxfed.config.keys import flatten, parents
from jaxfed.config.overrides import CANDIDATES, setting_of, with_overrides
from jaxfed.config.sections import OF_COMMANDS
from jaxfed.errors import UsageError
from jaxfed.learners import LEARNERS
from jaxfed.training.pseudo_labels.label_sources import BY_XCLP, settings_section, source_names
from jaxfed.training.pseudo_labels.pseudo_label import LABELING_NOTHING
from jaxfed.xclp.settings import disclosure

_OF_NO_METHOD = {"algorithm", "baselines", "paper_table", "deployment"}
# Keys of `training` that per-client networks read; the numbers of steps are keywords of the methods.
_OF_LEARNING_NETWORKS = (
    *("optimizer", "learning_rate", "schedule", "schedule_rounds", "momentum", "nesterov"),
    *("weight_decay", "batches", "batch_size", "loss", "class_weights", "augmentation"),
    "initial_model",
)
# Keys for execution, monitoring and display of a run with any method.
_OF_THE_RUN = (
    *("algorithm", "baselines", "paper_table", "dataset.root"),
    *("evaluate_every", "evaluate_test", "checkpoint_every"),
)
_WAYS_TO_RUN = ("execution", "deployment")


def seen_by(config: ConfigDict, name: str) -> dict[str, Any]:
    """Return the part of a checked config that can change a method's results, by dotted keys.

    * Every method sees seed, data, clients, public examples, cohorts, rounds and execution.
    * It sees the keywords of its own section and, if it trains on pseudo-labels, the sections of their
      sources. The key "method" has its algorithm and these keywords.
    * `training` includes the method's own settings (`jaxfed.config.methods`). One-shot methods do not see it,
      unless their features come from a model that is trained first.
    * `learner` is seen by methods with per-client models; of it and of `model` and `training` they see the
      parts that the clients' learners use.
    * The key "selection" has the settings to select from, if there are several.
    """
    seen, needed = methods.with_own_training(config, name), methods.needs(config, name)
    features_are_trained = config.preprocessing.kind == "federated_features"
    own, of_training = methods.keywords(config, name), set()
    unread = {*_OF_NO_METHOD, "selection", *ALGORITHMS, *methods.variants(config)}
    if needed.has_learners:
        unread |= {"pseudo_label"}
        unread |= {f"learner.{each}" for each in {*LEARNERS} - {*methods.learner_names(config)}}
        if not features_are_trained and methods.has_networks(config):
            of_training = {*seen.training} - {*_OF_LEARNING_NETWORKS}
        elif not features_are_trained:
            unread |= {"model", "training"}
    elif needed.trains:
        taken = _pseudo_labels_taken(config, name)
        unread -= set(map(settings_section, taken))  # of a name that may also be a method's
        # `xclp.late_fraction` is read by the one-shot method alone.
        unread |= {"learner", "xclp.late_fraction"}
        unread |= {"pseudo_label"} if taken <= LABELING_NOTHING else set()
        of_training = {*methods.unread_keys(config, name), *needed.ignores}
    else:
        unread |= {"learner"}
        unread |= set() if features_are_trained else {"model", "training", "pseudo_label"}
    unread |= {f"training.{key}" for key in of_training}
    found = {
        key: value
        for key, value in flatten(seen.to_dict())
        if unread.isdisjoint((key, *parents(key)))
    }
    found["method"] = methods.algorithm_of(config, name), own
    tried, wanted = methods.settings_to_try(config, name), config.selection
    if not needed.trains and wanted.settings != "given" and len(tried) > 1:
        found["selection"] = wanted.folds, wanted.measure, tried
    return found


def keys_seen_by(config: ConfigDict, name: str) -> dict[str, tuple[str, Any]]:
    """Return the result of `seen_by` under the keys that the user writes in the config.

    Returns:
        Key -> its name common to all methods, and its value: `fedprox.training.epochs` is
        `training.epochs`, a variant's keyword is its algorithm's.
    """
    seen = seen_by(config, name)
    (algorithm, own), _ = seen.pop("method"), seen.pop("selection", None)
    if len(methods.settings_to_try(config, name)) > 1:
        listed = name if name in config.selection.candidates else algorithm
        seen |= {
            f"selection.{key}": value
            for key, value in flatten(config.selection.to_dict())
            if parents(key) in ([], ["candidates", f"candidates.{listed}"])
        }
    everybody = (0, config.federation.num_clients)
    if methods.needs(config, name).one_shot and config.cohort_size in everybody:
        del seen["rounds"]  # there is one
    found = {}
    for key, value in seen.items():
        section, _, leaf = key.partition(".")
        written = methods.training_key(config, name, leaf) if section == "training" else key
        found[written] = key, value
    for word, value in own.items():
        owner = name if word in methods.own_section(config, name) else algorithm
        found[f"{owner}.{word}"] = f"{algorithm}.{word}", value
    if name != algorithm:
        found[f"{name}.algorithm"] = f"{name}.algorithm", algorithm
    return found


def disclosures(config: ConfigDict) -> list[str]:
    """Return lines on what server and clients can learn if steps of XCLP run as secure protocols.

    A plaintext run guarantees nothing and has no lines.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for name in methods.chosen(config):
        settings = _xclp_settings(config, name)
        if settings and not settings["hamming"] == settings["row_sums"] == "plaintext":
            found.setdefault(disclosure.lines(settings), []).append(name)
    return [f"{', '.join(names)}: {line}" for lines, names in found.items() for line in lines]


def _xclp_settings(config: ConfigDict, name: str) -> dict[str, Any]:
    """Return the settings of XCLP that a method labels with; {} if it does not use XCLP."""
    needed = methods.needs(config, name)
    if not needed.trains:
        own = methods.all_keywords(config, name)
        return own if "hamming" in own else {}
    by_xclp = {*BY_XCLP} & _pseudo_labels_taken(config, name)
    return config.xclp.to_dict() if by_xclp and not needed.has_learners else {}


def _pseudo_labels_taken(config: ConfigDict, name: str) -> set[str]:
    """Return the sources of labels that a method may use; all of them if it does not declare its own."""
    source = methods.needs(config, name).pseudo_label
    return {"none", *(source_names() if source is None else (source,))}


def check_given(
    config: ConfigDict, overrides: Sequence[str], *, command: str = ""
) -> tuple[str, ...]:
    """Check that every override of the user is in effect in the run.

    Args:
        config: the config without the overrides, such as a file's, with references between keys.
        overrides: `KEY=VALUE`, as the user gave them; the config with them is already checked.
        command: the command that runs; it may read a section of its own (`Section.reader`).

    Returns:
        The overrides that change something; with some data one of them may still have no effect
        (`Simulation.check_given`).

    Raises:
        UsageError: names the first key that nothing reads, its value, and the reason.
    """
    given = Given(command)
    for line in given.unread(config, overrides).values():
        raise UsageError(line)
    return tuple(text for text in overrides if _key(text) in given.read)


class Given:
    """Record of overrides that are in effect in one experiment or at any point of a sweep.

    Attributes:
        read: the keys that have been in effect so far.
    """

    def __init__(self, command: str = "") -> None:
        self._command = command
        self.read: set[str] = set()
        self._unread: dict[str, str] = {}

    def unread(self, base: ConfigDict, overrides: Sequence[str]) -> dict[str, str]:
        """Add one experiment; return key -> error line for keys without effect in any experiment so far."""
        left = [text for text in overrides if _key(text) not in self.read]
        if not left:
            return self._unread
        run = Run(with_overrides(base, overrides), self._command)
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
            every = {*run.values, *before}
            changed = {key for key in every if run.values.get(key, ...) != before.get(key, ...)}
            if all(map(run.objection, changed)):
                check(without)
                there = Run(without, self._command)
                return bool(changed), not all(map(there.objection, changed))
        except UsageError:  # other settings depend on the override
            pass
        return True, True


class Run:
    """A checked config, and the keys that its methods read.

    Attributes:
        values: dotted key -> value.
    """

    def __init__(self, config: ConfigDict, command: str = "") -> None:
        self._config, self._command = config, command
        self.values = dict(flatten(config.to_dict()))
        self._seen = {name: keys_seen_by(config, name) for name in methods.chosen(config)}

    def objection(self, key: str) -> str:
        """Return why a key has no effect, and what to write instead; "" if it has one."""
        names, section = ", ".join(self._seen), key.partition(".")[0]
        if key in _OF_THE_RUN or section in _WAYS_TO_RUN:
            return ""
        if reader := OF_COMMANDS.get(section):
            return "" if reader == self._command else f"{reader} alone reads it; leave it out"
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
