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
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags
from ml_collections.config_dict import placeholder

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import base, methods
from jaxfed.config.keys import flatten, parents
from jaxfed.config.sections import SECTIONS, TrainingSection
from jaxfed.config.stored import GONE
from jaxfed.data import SCHEMES
from jaxfed.data.loading import READERS
from jaxfed.errors import UsageError, did_you_mean, nearest
from jaxfed.federation.method import method_settings
from jaxfed.learners import INGREDIENTS, LEARNERS
from jaxfed.models import MODELS, options_of
from jaxfed.registry import Registry
from jaxfed.settings import (
    REQUIRED,
    OneOf,
    Setting,
    advice,
    check_value,
    settings_of,
    takes_any,
)
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS

PLUGINS: tuple[Registry[Any], ...] = (PSEUDO_LABELS, READERS, SCHEMES)
"""Registries of which an entry registered from outside has a section of its name."""
CANDIDATES = "selection.candidates."  # METHOD.KEY follows
_ALL = "docs/keys.md lists all keys"
_ALGORITHM = Setting(Annotated[str, OneOf(ALGORITHMS)], "", "algorithm of which it is a variant")


def with_overrides(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """Return a copy of the config with overrides applied in order, references resolved and keys locked.

    `model.name` and `NAME.algorithm`, which defines a variant of an algorithm, are applied first: they
    determine which keys exist. Another network replaces the options of the config's own, another
    `dataset.name` the sizes of its data set (`jaxfed.config.base.SIZES_OF_A_SET`).

    Raises:
        UsageError: a key is unknown, or a value cannot be parsed as the type of its key.
    """
    changed = copy.deepcopy(config)  # with its references, so overrides propagate along them
    changed.unlock()
    _reset_sizes(changed, overrides)
    with changed.ignore_type():
        first = re.compile(r"(model\.name|\w+\.algorithm)=")
        for text in sorted(overrides, key=lambda text: first.match(text) is None):
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
        own = settings_of(SECTIONS[section])
        network = config.get("model", {}).get("name", "")
        return {**own, **options_of(network)} if section == "model" and network in MODELS else own
    if owner == "learner" and inner in LEARNERS:
        known = settings_of(LEARNERS[inner])
        return {key: one for key, one in known.items() if key not in INGREDIENTS}
    if methods.algorithm_of(config, owner) not in ALGORITHMS:
        return {}
    if dot:
        return settings_of(TrainingSection) if inner == "training" else {}
    own = method_settings(methods.factory_of(config, owner))
    return own if owner in ALGORITHMS else {**own, "algorithm": _ALGORITHM}


def _candidates(config: ConfigDict, name: str) -> dict[str, Setting]:
    """Return key -> setting of values to try: lists of numbers and switches of a one-shot method."""
    if methods.algorithm_of(config, name) not in ALGORITHMS:
        return {}
    if methods.needs(config, name).trains:
        allowed = "use a sweep, whose points its validation split chooses among"
        key = f"config.{CANDIDATES}{name}"
        raise UsageError(f"{name!r} trains a model", key=key, allowed=allowed)
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
    """Return the value of a key, for a method's key outside the config the value in effect; None: unknown."""
    flat, setting = dict(flatten(config.to_dict())), setting_of(config, key)
    if key in flat or setting is None or key.startswith("model."):
        return flat.get(key)
    found, (owner, _, name) = setting.default, key.partition(".")
    if methods.algorithm_of(config, owner) in ALGORITHMS:
        training = methods.with_own_training(config, owner).training
        seen = {f"training.{each}": value for each, value in training.items()}
        found = (seen | methods.all_keywords(config, owner)).get(name, found)
    return None if found is REQUIRED else found


def _optional_sections() -> list[str]:
    """Return the sections of learners, and of what is registered from outside."""
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
        return UsageError(wrong, key=f"config.{key}", allowed="leave it out")
    section, _, leaf = key.rpartition(".")
    sections = {parent for name in known for parent in parents(name)}
    for parent in parents(key):
        if parent not in sections:
            near = did_you_mean(nearest(parent, sections))
            return UsageError(f"no such section{near}", key=f"config.{parent}", allowed=_ALL)
    own = {name: name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section}
    close = nearest(leaf, own.values())
    meant = (
        [name for name in own if leaf in own[name] or own[name] in close]
        or [name for name in known if f".{name}".endswith(f".{leaf}") and name.count(".") < 2]
        or nearest(key, () if section else known)
    )
    near = did_you_mean(sorted(meant))
    return UsageError(f"unknown key{near}", key=f"config.{key}", allowed="" if near else _ALL)


def _reset_sizes(config: ConfigDict, overrides: Sequence[str]) -> None:
    given = dict(text.partition("=")[::2] for text in overrides)
    if given.get("dataset.name") in (None, config.get("dataset", {}).get("name")):
        return
    there = dict(flatten(config.to_dict()))
    sizes = dict(base.SIZES_OF_A_SET)
    if there.get("federation.public_size") and "federation.public_size" not in given:
        sizes["federation.public_fraction"] = base.PUBLIC_FRACTION
    for key in there.keys() & sizes.keys() - given.keys():
        config.update_from_flattened_dict({key: sizes[key]})


def _override(config: ConfigDict, text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--config.{key}: a value is missing, write --config.{key}=VALUE")
    flat, setting = dict(flatten(config.to_dict())), setting_of(config, key)
    inside = [name for name in flat if name.startswith(f"{key}.")]
    if inside or isinstance(flat.get(key), Mapping):
        own = sorted({name.removeprefix(f"{key}.").partition(".")[0] for name in inside})
        raise UsageError(f"config.{key} is a section; its keys are {', '.join(own)}")
    if setting is None and key not in flat:
        raise unknown_key(key, {*flat, *known_keys(config)})
    default = flat[key] if setting is None else setting.default
    hint = setting.hint if setting else type(default)
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
    """Parse a value by `config_flags` as `kind`; a tuple or None as a Python literal, or else as text."""
    is_literal = kind not in (bool, int, float, str)
    held = ConfigDict({"value": placeholder(object if is_literal else kind)})
    if is_literal and kind is not tuple and text.lower() == "none":
        return None
    arguments, values = ["", f"--config.value={text}"], flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict(
            "config", held, flag_values=values, lock_config=False, sys_argv=arguments
        )
        values(arguments)
    except flags.Error:
        raise UsageError(key=f"config.{key}={text}", allowed=advice(hint)) from None
    except (RecursionError, MemoryError):
        held.value = text
    value = held.value
    if is_literal and isinstance(value, str) and value.startswith(("(", "[")):
        raise UsageError(
            "not a list", key=f"config.{key}={text}", allowed="write a,b or ('a', 'b')"
        )
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
    """Return keys by section: shared ones, those of methods, learners, networks, and of what is added."""
    sections = [*SECTIONS, *ALGORITHMS, *_optional_sections()]
    found = []
    for section in sections:
        given = getattr(ALGORITHMS.get(section), "keywords", {})  # fixed by the method's name
        own = settings_in(ConfigDict(), section)
        found += [
            _entry(f"{section}.{key}".lstrip("."), one)
            for key, one in own.items()
            if key not in given
        ]
    # Networks whose option has the same default and allowed values share an entry.
    options: dict[tuple[str, str, str], list[str]] = {}
    for network in MODELS:
        for key, one in options_of(network).items():
            options.setdefault((key, repr(one.default), one.allowed), []).append(network)
    for (key, default, allowed), networks in sorted(options.items()):
        found.append(Entry(f"model.{key}", default, allowed, f"option of {', '.join(networks)}"))
    return found


def help_text(prefix: str = "", config: ConfigDict | None = None) -> str:
    """Return a paragraph for each key with a prefix: its default, or a config's value and the default.

    Raises:
        UsageError: no key has the prefix.
    """
    every = entries()
    found = [entry for entry in every if entry.key.startswith(prefix)]
    if not found:
        wrong = unknown_key(prefix, {entry.key for entry in every}).wrong
        raise UsageError(f"--help_keys={prefix}: {wrong}")
    values = dict(flatten(config.to_dict())) if config is not None else {}
    return "\n".join(_paragraph(entry, values) for entry in found)


def _entry(key: str, one: Setting) -> Entry:
    conditions = " and ".join(map(str, one.conditions))
    meaning = one.meaning.rstrip(".")
    return Entry(
        key,
        "needed" if one.default is REQUIRED else repr(one.default),
        one.allowed,
        f"with {conditions}: {meaning}" if conditions else meaning,
    )


def _paragraph(entry: Entry, values: Mapping[str, Any]) -> str:
    value = repr(values[entry.key]) if entry.key in values else entry.default
    head = f"{entry.key} = {value}"
    head += f" (default: {entry.default})" if value != entry.default else ""
    allowed = f" (allowed: {entry.allowed})" if entry.allowed else ""
    text = textwrap.fill(
        f"{entry.meaning}{allowed}".strip(), 100, initial_indent="    ", subsequent_indent="    "
    )
    return f"{head}\n{text}"
