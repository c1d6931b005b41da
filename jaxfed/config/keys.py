"""Dotted keys, such as `xclp.num_bits` for the entry `num_bits` of section `xclp`, and checks of values."""

from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any

from ml_collections import ConfigDict

from jaxfed.errors import UsageError, did_you_mean, nearest
from jaxfed.rules import IN_FLOAT32, Rule, beyond_float32, check_values, rules_of

TYPES: dict[type, str] = {bool: "true or false", int: "integers", float: "numbers", str: "text"}
_LARGEST = 2**31 - 1  # arrays on the device count with int32
_OF_FILE = "_values_of_file"  # attribute of a config


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings with dotted keys."""
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def remember_values(config: ConfigDict, values: Mapping[str, Any] | None = None) -> None:
    """Store a file's values, by default those of the config, beside its keys; copies do not have them."""
    values = dict(flatten(config.to_dict())) if values is None else values
    object.__setattr__(config, _OF_FILE, values)


def remembered_values(config: ConfigDict) -> Mapping[str, Any] | None:
    """Return the values of the config's file by dotted keys, before anybody changed them, or None."""
    return vars(config).get(_OF_FILE)


def check_value(key: str, value: Any, rule: Rule) -> None:
    """Check that a value has the rule's type (integers pass as numbers) and is allowed."""
    is_type = rule.type in (object, type(value)) or (rule.type is float and type(value) is int)
    if not is_type or not rule.holds(value):
        listed = value if isinstance(value, tuple) else (value,)
        unknown = [name for name in listed if isinstance(name, str) and name not in rule.choices]
        meant = {name: nearest(name, rule.choices) for name in unknown if rule.choices}
        wrong, allowed = "", rule.advice
        if isinstance(value, tuple) and meant:
            words = (f"{name!r} is unknown{did_you_mean(near)}" for name, near in meant.items())
            wrong, allowed = "; ".join(words), "" if all(meant.values()) else allowed
        elif isinstance(value, tuple) and rule.choices:
            twice = sorted({repr(name) for name in value if value.count(name) > 1})
            if twice:
                wrong, allowed = f"{', '.join(twice)} is named twice", "name each once"
        elif isinstance(value, str):
            allowed += did_you_mean(meant.get(value, []))
        raise UsageError(wrong, key=f"config.{key}", value=value, allowed=allowed)
    if wrong := beyond_float32(value, rule):
        raise UsageError(wrong, key=f"config.{key}", value=value, allowed=IN_FLOAT32)
    if rule.type is int and value > _LARGEST:
        raise UsageError(key=f"config.{key}", value=value, allowed=f"use integers up to {_LARGEST}")


def check_own(section: str, given: Mapping[str, Any], factory: Callable[..., Any]) -> None:
    """Check a section's values one by one, by the types of a factory's defaults and by its rules.

    Raises:
        UsageError: a value of another type, or out of range.
    """
    known, rules = signature(factory).parameters, rules_of(factory)
    for key, value in given.items():
        kind = type(known[key].default) if key in known else None
        if kind in TYPES:
            is_ruled = kind is float and key in rules
            check_value(
                f"{section}.{key}", value, rules[key] if is_ruled else Rule(kind, TYPES[kind])
            )
        if key in rules:
            check_values(f"config.{section}", {key: rules[key]}, {key: value})
