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
from typing import Any

from jaxfed.rules import classes_of, plain_factory

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
    plain, _ = plain_factory(factory)
    classes = [base for each in classes_of(plain) for base in reversed(each.__mro__[:-1])]
    return {name: text for each in (*classes, plain) for name, text in meanings(each).items()}
