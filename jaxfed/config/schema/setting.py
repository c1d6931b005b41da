"""A shared setting: default, rule and meaning."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from jaxfed.rules import Rule


class Setting(NamedTuple):
    """Default, rule and meaning of a key, defined only here.

    Fields:
        default: the value in `jaxfed.config.base.get_config()`.
        rule: the allowed values.
        meaning: one line of documentation.
    """

    default: Any
    rule: Rule
    meaning: str


def in_section(section: str, settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the settings under dotted keys, `section.key`."""
    return {f"{section}.{key}": setting for key, setting in settings.items()}


SWITCH = Rule(bool, "true or false")
TEXT = Rule(str, "text")
BELOW_ONE = Rule(float, "numbers from 0 to below 1", lambda value: 0 <= value < 1)


def are_texts(values: Collection[Any]) -> bool:
    """True for a collection of strings only."""
    return all(isinstance(value, str) for value in values)
