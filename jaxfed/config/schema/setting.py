"""One setting that all configs share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from jaxfed.rules import Rule


class Setting(NamedTuple):
    """A key's default, its rule and its meaning; this is the only place that has them.

    Fields:
        default: the value in `ml_collections_configs.base.get_config()`.
        rule: the values that are allowed.
        meaning: one line for people.
    """

    default: Any
    rule: Rule
    meaning: str


def in_section(section: str, settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The same settings under dotted keys, `section.key`."""
    return {f"{section}.{key}": setting for key, setting in settings.items()}


SWITCH = Rule(bool, "true or false")
TEXT = Rule(str, "text")
BELOW_ONE = Rule(float, "0 to below 1", lambda value: 0 <= value < 1)


def are_texts(values: Collection[Any]) -> bool:
    """True for a collection of texts alone."""
    return all(isinstance(value, str) for value in values)
