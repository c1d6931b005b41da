"""Meanings of keywords, parsed from docstrings.

    Args:
        mu: proximal weight; 0 is FedAvg.
            A line that goes on.

A keyword is documented in the factory's own docstring (`Args:`), or in that of the dataclass whose fields are
the factory's keywords (`Attributes:`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

_SECTION = re.compile(r"^(Args|Attributes|Fields):\n((?:[ \t]+.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}([\w, ]+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def meanings(documented: Any) -> dict[str, str]:
    """Return keyword -> meaning in one line, from the docstring of a function or class."""
    text = (inspect.getdoc(documented) or "") + "\n"
    found: dict[str, str] = {}
    for _, entries in _SECTION.findall(text):
        for names, meaning in _ENTRY.findall(entries):
            for name in names.split(","):
                found[name.strip()] = " ".join(meaning.split())
    return found


def factory_meanings(factory: Callable[..., Any]) -> dict[str, str]:
    """Return keyword -> meaning of a factory's keywords, including those from a dataclass."""
    while isinstance(factory, partial):
        factory = factory.func
    classes = reversed(getattr(factory, "fields_of", object).__mro__[:-1])
    return {name: text for each in (*classes, factory) for name, text in meanings(each).items()}
