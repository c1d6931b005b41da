"""Dotted keys: `xclp.num_bits` for the entry `num_bits` of the section `xclp`."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings with dotted keys."""
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
