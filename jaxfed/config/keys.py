"""Dotted keys, such as `xclp.num_bits` for the entry `num_bits` of section `xclp`."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxfed.errors import UsageError


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
