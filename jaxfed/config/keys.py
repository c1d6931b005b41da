"""Dotted keys, such as `xclp.num_bits` for the entry `num_bits` of section `xclp`."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxfed.errors import UsageError

_OF_FILE = "_values_of_file"  # attribute of a config


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings with dotted keys."""
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def parents(key: str) -> list[str]:
    """Return the enclosing sections: `a` and `a.b` for `a.b.c`."""
    words = key.split(".")
    return [".".join(words[:count]) for count in range(1, len(words))]


def refused(config: ConfigDict, key: str, wrong: str = "", allowed: str = "") -> UsageError:
    """Return the error for the value of a dotted key; `allowed` says what to write instead."""
    value: Any = config
    for name in key.split("."):
        value = value[name]
    return UsageError(wrong, key=f"config.{key}", value=value, allowed=allowed)


def remember_values(config: ConfigDict, values: Mapping[str, Any] | None = None) -> None:
    """Store the values of a config's file, by default its present ones, as an attribute; copies lack it."""
    values = dict(flatten(config.to_dict())) if values is None else values
    object.__setattr__(config, _OF_FILE, values)


def remembered_values(config: ConfigDict) -> Mapping[str, Any] | None:
    """Return dotted key -> value in the config's file, before changes; None if they are not stored."""
    return vars(config).get(_OF_FILE)
