"""Reference of settings, generated from the code: keys by prefix (`--help_keys`), and entries for pages.

A key is a shared setting, a keyword of a method's or a learner's factory, or an option of a network.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import PLUGINS, settings_in, unknown_key
from jaxfed.config.sections import SECTIONS
from jaxfed.errors import UsageError
from jaxfed.learners import LEARNERS
from jaxfed.models import MODELS, options_of
from jaxfed.settings import REQUIRED, Setting


class Entry(NamedTuple):
    """Reference entry of one key."""

    key: str
    default: str  # a Python literal
    allowed: str
    meaning: str


def entries() -> list[Entry]:
    """Return keys by section: shared ones, those of methods, learners, networks, and of what is added."""
    sections = [*SECTIONS, *ALGORITHMS, *(f"learner.{name}" for name in LEARNERS)]
    sections += [name for registry in PLUGINS for name in registry.from_outside()]
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
