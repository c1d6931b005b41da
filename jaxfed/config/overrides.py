"""Overrides `KEY=VALUE` of single keys of a config, suggestions for a mistyped key, and a reference of all.

    with_overrides(config, ["xclp.alpha=0.9", "fedprox.mu=1", "model.name=cnn"])

KEY is the dotted path of a key in the config, or of one that it may have in addition: a method's keyword,
`METHOD.training.KEY`, a learner's keyword, an option of the network. VALUE is parsed as the type of the
key's default, as absl's flags are; tuples may also be written `a,b`. `entries` and `help_text` list all keys
for pages and `--help_keys`.
"""

from __future__ import annotations

import copy
import re
from ast import literal_eval
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import base, methods
from jaxfed.config.keys import flatten
from jaxfed.config.sections import SECTIONS, TrainingSection
from jaxfed.config.stored import GONE, INSTEAD
from jaxfed.data import SCHEMES
from jaxfed.data.loading import READERS
from jaxfed.errors import UsageError, did_you_mean, nearest
from jaxfed.federation.method import method_settings
from jaxfed.learners import INGREDIENTS, LEARNERS
from jaxfed.models import MODELS, options_of
from jaxfed.registry import Registry
from jaxfed.settings import REQUIRED, OneOf, Setting, advice, check_value, settings_of, takes_any
from jaxfed.training.specification import PSEUDO_LABELS

PLUGINS: tuple[Registry[Any], ...] = (PSEUDO_LABELS, READERS, SCHEMES)
"""Registries whose external entries have a section each, of the entry's name."""
CANDIDATES = "selection.candidates."  # METHOD.KEY follows
_FIRST = re.compile(r"(model\.name|\w+\.algorithm)=")
_ALL = "docs/keys.md lists all keys"
_PARSERS: dict[type, Any] = {
    bool: flags.BooleanParser(),
    int: flags.IntegerParser(),
    float: flags.FloatParser(),
    str: flags.ArgumentParser(),
}
_ALGORITHM = Setting(Annotated[str, OneOf(ALGORITHMS)], "", "algorithm of which it is a variant")


def with_overrides(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """Return a copy of the config with overrides applied in order, references resolved and keys locked.

    `model.name` and `NAME.algorithm`, which defines a variant of an algorithm, are applied first: they
    determine which keys exist. A new network drops the options of the old one. A new
    `dataset.name` resets the sizes of the data set (`jaxfed.config.base.SIZES_OF_A_SET`).
    """
    changed = copy.deepcopy(config)  # with its references, so overrides propagate along them
    changed.unlock()
    _reset_sizes(changed, overrides)
    with changed.ignore_type():
        for text in sorted(overrides, key=lambda text: not _FIRST.match(text)):
            _override(changed, text)
    resolved = changed.copy_and_resolve_references()
    resolved.lock()
    return resolved


def as_text(key: str, value: Any) -> str:
    """Return `KEY=VALUE` in the form that `with_overrides` parses."""
    value = value.tolist() if hasattr(value, "tolist") else value  # of NumPy
    if isinstance(value, list | tuple):
        value = tuple(each.tolist() if hasattr(each, "tolist") else each for each in value)
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}"


def settings_in(config: ConfigDict, section: str) -> Mapping[str, Setting]:
    """Return key -> setting of all keys that a section may have; "" has the keys outside of sections."""
    owner, dot, inner = section.partition(".")
    if section.startswith(CANDIDATES):
        return _candidates(config, section.removeprefix(CANDIDATES))
    for registry in PLUGINS:
        if section in registry.from_outside():
            return settings_of(registry[section])
    if section in SECTIONS:
        settings = settings_of(SECTIONS[section])
        network = config.get("model", {}).get("name", "")
        return (
            {**settings, **options_of(network)}
            if section == "model" and network in MODELS
            else settings
        )
    if owner == "learner" and inner in LEARNERS:
        known = settings_of(LEARNERS[inner])
        return {key: one for key, one in known.items() if key not in INGREDIENTS}
    if methods.algorithm_of(config, owner) not in ALGORITHMS:
        return {}
    if dot:
        return settings_of(TrainingSection) if inner == "training" else {}
    settings = method_settings(methods.factory_of(config, owner))
    return settings if owner in ALGORITHMS else {**settings, "algorithm": _ALGORITHM}


def _candidates(config: ConfigDict, name: str) -> dict[str, Setting]:
    """Return key -> setting of candidate values: lists, for each number and switch of a one-shot method."""
    is_known = methods.algorithm_of(config, name) in ALGORITHMS
    if not is_known or methods.needs(config, name).trains:
        return {}
    return {
        key: one._replace(hint=tuple[one.hint, ...], default=())  # type: ignore[name-defined]
        for key, one in settings_in(config, name).items()
        if type(one.default) in (bool, int, float)
    }


def setting_of(config: ConfigDict, key: str) -> Setting | None:
    """Return the setting of a key; None for an unknown key."""
    section, _, name = key.rpartition(".")
    _, dot, learner = section.partition("learner.")
    known = settings_in(config, section)
    if name == "algorithm" and section.isidentifier() and section not in config:
        return _ALGORITHM  # this override defines a new variant
    is_open = dot and learner in LEARNERS and takes_any(LEARNERS[learner])
    if is_open and name not in (*known, *INGREDIENTS):
        return Setting(Any, None, "keyword of the estimator's class")
    return known.get(name)


def value_of(config: ConfigDict, key: str) -> Any:
    """Return the value of a key, for a method's key outside the config the one in effect; None if unknown."""
    flat, setting = dict(flatten(config.to_dict())), setting_of(config, key)
    owner, _, name = key.partition(".")
    shared = name if name.startswith("training.") else ""
    for known in (key, f"{methods.algorithm_of(config, owner)}.{name}", shared):
        if known in flat:
            return flat[known]
    return None if setting is None or setting.default is REQUIRED else setting.default


def _optional_sections() -> list[str]:
    """Return the sections of learners and of external registry entries."""
    outside = [name for registry in PLUGINS for name in registry.from_outside()]
    return [*(f"learner.{name}" for name in LEARNERS), *outside]


def known_keys(config: ConfigDict) -> set[str]:
    """Return every key that the config may have."""
    sections = [*SECTIONS, *_optional_sections()]
    for name in (*ALGORITHMS, *methods.variants(config)):
        if methods.algorithm_of(config, name) in ALGORITHMS:
            trains = methods.needs(config, name).trains
            sections += [name, f"{name}.training" if trains else f"{CANDIDATES}{name}"]
    return {f"{one}.{key}".lstrip(".") for one in sections for key in settings_in(config, one)}


def unknown_key(key: str, known: Collection[str]) -> UsageError:
    """Return the error for an unknown key; it suggests similar keys of its section, else of any."""
    if key in GONE:
        wrong = f"no longer a setting; runs are as with {GONE[key]!r}"
        allowed = f"use config.{INSTEAD[key]}" if key in INSTEAD else "leave it out"
        return UsageError(wrong, key=f"config.{key}", allowed=allowed)
    section, _, leaf = key.rpartition(".")
    in_section = {
        name.removeprefix(f"{section}.") for name in known if name.startswith(f"{section}.")
    }
    meant = [
        f"{section}.{name}"
        for name in in_section
        if leaf in name or [name] == nearest(leaf, in_section)
    ]
    elsewhere = [one for one in known if f".{one}".endswith(f".{leaf}") and one.count(".") < 2]
    meant = meant or elsewhere or nearest(key, () if section else known)
    near = did_you_mean(sorted(meant))
    return UsageError(f"unknown key{near}", key=f"config.{key}", allowed="" if near else _ALL)


def _reset_sizes(config: ConfigDict, overrides: Sequence[str]) -> None:
    overridden = dict(text.partition("=")[::2] for text in overrides)
    if overridden.get("dataset.name") in (None, config.get("dataset", {}).get("name")):
        return
    current = dict(flatten(config.to_dict()))
    for key in current.keys() & base.SIZES_OF_A_SET.keys() - overridden.keys():
        config.update_from_flattened_dict({key: base.SIZES_OF_A_SET[key]})


def _override(config: ConfigDict, text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--config.{key}: a value is missing, write --config.{key}=VALUE")
    flat, setting = dict(flatten(config.to_dict())), setting_of(config, key)
    inside = sorted(name for name in flat if name.startswith(f"{key}."))
    if inside or isinstance(flat.get(key), Mapping):
        raise UsageError(f"config.{key} is a section; its keys are {', '.join(inside)}")
    if setting is None and key not in flat:
        raise unknown_key(key, {*flat, *known_keys(config)})
    hint, default, _ = setting or Setting(type(flat[key]), flat[key], "")
    new = _parsed(key, value, type(default), hint)
    if setting is _ALGORITHM:  # its keywords are looked up next
        check_value(f"config.{key}", new, hint)
    if key == "model.name" and new != flat.get(key):
        config.model = ConfigDict({})
    *sections, name = key.split(".")
    section = config
    for parent in sections:
        if parent not in section:
            section[parent] = ConfigDict()
        section = section[parent]
    section[name] = new


def _parsed(key: str, text: str, kind: type, hint: Any) -> Any:
    """Parse a value of type `kind` as absl's flags do; a tuple or None as a Python literal, else as text."""
    if kind in _PARSERS:
        try:
            return _PARSERS[kind].parse(text)
        except ValueError:
            raise UsageError(key=f"config.{key}={text}", allowed=advice(hint)) from None
    try:
        value = None if text.lower() == "none" and kind is not tuple else literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if text.startswith(("(", "[")):
            allowed = "write a,b or ('a', 'b')"
            raise UsageError("not a list", key=f"config.{key}={text}", allowed=allowed) from None
        value = text
    if kind is tuple and isinstance(value, str):
        value = [entry.strip() for entry in value.split(",") if entry.strip()]
    if isinstance(value, list):
        return tuple(value)
    return (value,) if kind is tuple and not isinstance(value, tuple) else value


class Entry(NamedTuple):
    """Reference entry of one key."""

    key: str
    default: str  # a Python literal
    allowed: str
    meaning: str


def entries() -> list[Entry]:
    """Return all keys: shared ones, then those of methods, learners, external entries and networks."""
    all_entries = [
        _entry(f"{section}.{key}".lstrip("."), one)
        for section in [*SECTIONS, *ALGORITHMS, *_optional_sections()]
        for key, one in settings_in(ConfigDict(), section).items()
        if key not in getattr(ALGORITHMS.get(section), "keywords", {})  # fixed by the method's name
    ]
    # Networks whose option has the same default and allowed values share an entry.
    options: dict[tuple[str, str, str], list[str]] = {}
    for network in MODELS:
        for key, one in options_of(network).items():
            options.setdefault((key, repr(one.default), one.allowed), []).append(network)
    for (key, default, allowed), networks in sorted(options.items()):
        all_entries.append(
            Entry(f"model.{key}", default, allowed, f"option of {', '.join(networks)}")
        )
    return all_entries


def help_text(prefix: str = "", config: ConfigDict | None = None) -> str:
    """Return two lines for each key with a prefix: its default, or a config's value, and its meaning."""
    values, lines = dict(flatten(config.to_dict())) if config is not None else {}, []
    for key, default, allowed, meaning in entries():
        value = repr(values[key]) if key in values else default
        if key.startswith(prefix):
            lines.append(f"{key} = {value}" + f" (default: {default})" * (value != default))
            allowed = f"(allowed: {allowed})" * bool(allowed)
            lines.append("    " + " ".join(filter(None, (meaning, allowed))))
    if not lines:
        raise UsageError(f"--help_keys={prefix}: no key begins so; {_ALL}")
    return "\n".join(lines)


def _entry(key: str, one: Setting) -> Entry:
    conditions = " and ".join(map(str, one.conditions))
    meaning = f"with {conditions}: " * bool(conditions) + one.meaning.rstrip(".")
    default = "needed" if one.default is REQUIRED else repr(one.default)
    return Entry(key, default, one.allowed, meaning)
