"""The navigation of zensical.toml: patterns are filled with pages, and no page may be outside it."""

from __future__ import annotations

import fnmatch
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

Nav = list[Any]


def filled(nav: Nav, titles: dict[str, str]) -> tuple[Nav, list[str]]:
    """Replace patterns such as "methods/*" by the pages that no other entry names.

    Args:
        nav: entries "path", {"title": "path"} and {"title": [entries]}.
        titles: of all pages, by path.

    Returns:
        The navigation, and a line for each page that is outside it, missing, or in it twice.
    """
    named = [path for path in _paths(nav) if "*" not in path]
    rest = [path for path in titles if path not in named]
    found = _filled(nav, rest, titles)
    count = Counter(_paths(found))
    faults = [
        f"zensical.toml: {path} is outside the navigation" for path in titles if path not in count
    ]
    faults += [f"zensical.toml: there is no page {path}" for path in count if path not in titles]
    faults += [f"zensical.toml: {path} is there twice" for path, n in count.items() if n > 1]
    return found, faults


def config_text(settings: dict[str, Any], nav: Nav, pages: Path, out: Path, root: Path) -> str:
    """Return the configuration that Zensical reads, in TOML; its paths begin at its own folder."""
    base = pages.parent
    settings["project"] |= {
        "docs_dir": os.path.relpath(pages, base),
        "site_dir": os.path.relpath(out, base),
        "nav": nav,
    }
    options = settings["project"]["plugins"]["mkdocstrings"]["handlers"]["python"]
    options["paths"] = [str(root)]
    return f"project = {_value(settings['project'])}\n"


def _filled(nav: Nav, rest: list[str], titles: dict[str, str]) -> Nav:
    found: Nav = []
    for entry in nav:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            found.append({title: below if isinstance(below, str) else _filled(below, rest, titles)})
        elif "*" in entry:
            found += [{titles[path]: path} for path in rest if fnmatch.fnmatch(path, entry)]
        else:
            found.append(entry)
    return found


def _paths(nav: Nav) -> list[str]:
    paths: list[str] = []
    for entry in nav:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        paths += [below] if isinstance(below, str) else _paths(below)
    return paths


def _value(value: Any) -> str:
    """A value as an inline one of TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
