"""Reference of settings and methods, generated from the code: `--help_keys`, two pages, README's table.

A key is a shared setting, a keyword of a method's or a learner's factory, or an option of a network.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import PLUGINS, nearest_keys, settings_in
from jaxfed.config.sections import SECTIONS
from jaxfed.errors import UsageError, did_you_mean, nearest
from jaxfed.federation.method import INGREDIENTS, declared, method_settings, plain
from jaxfed.learners import LEARNERS
from jaxfed.models import MODELS, options_of
from jaxfed.registry import Registry
from jaxfed.settings import REQUIRED, Setting


class Entry(NamedTuple):
    """Reference entry of one key; the default is a Python literal."""

    key: str
    default: str
    allowed: str
    meaning: str


def entries(*, registered: bool = False) -> list[Entry]:
    """Return jaxfed's keys by section: shared settings, then those of methods, learners and networks.

    With `registered` return only the keys of what is registered from outside, such as by a config file.
    """

    def names(registry: Registry[Any]) -> list[str]:
        return [name for name in registry if (name in registry.from_outside()) == registered]

    sections = [] if registered else [*SECTIONS]
    sections += [*names(ALGORITHMS), *(f"learner.{name}" for name in names(LEARNERS))]
    sections += [name for registry in PLUGINS if registered for name in names(registry)]
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
    for network in names(MODELS):
        for key, one in options_of(network).items():
            options.setdefault((key, repr(one.default), one.allowed), []).append(network)
    for (key, default, allowed), networks in sorted(options.items()):
        found.append(Entry(f"model.{key}", default, allowed, f"option of {', '.join(networks)}"))
    return found


def help_text(prefix: str = "", config: ConfigDict | None = None) -> str:
    """Return a paragraph for each key with a prefix: its default, or a config's value and the default.

    Keys of registered methods, networks and the like are among them; loading the config registers them.

    Raises:
        UsageError: no key has the prefix.
    """
    every = [*entries(), *entries(registered=True)]
    found = [entry for entry in every if entry.key.startswith(prefix)]
    if not found:
        keys = [entry.key for entry in every]
        sections = sorted({key.partition(".")[0] for key in keys if "." in key})
        near = nearest(prefix.partition(".")[0], sections) or nearest_keys(prefix, keys)
        meant = did_you_mean(near) or f"; sections are {', '.join(sections)}"
        raise UsageError(f"--help_keys={prefix}: no key begins so{meant}")
    values = dict(flatten(config.to_dict())) if config is not None else {}
    return "\n".join(_paragraph(entry, values) for entry in found)


def keys_page() -> str:
    """Return the text of `docs/keys.md`."""
    lines = [
        "# Which settings are there?",
        "",
        "Every key of a config, set by `--config.KEY=VALUE` or in a config file. This page is made from the",
        "code by `python -m launch.run --help_keys=page`; `--help_keys=PREFIX` prints keys with a prefix.",
        "A method's own keys are also keys of its variants, and its training may differ from the others' by",
        "`METHOD.training.KEY`, with the keys of `training`. A config file overrides many of these",
        "defaults: `config.json` in a workdir has the values that a run used.",
    ]
    section = None
    for entry in entries():
        own = entry.key.rpartition(".")[0] or "experiment"
        if own != section:
            section = own
            lines += [
                "",
                f"## {own}",
                "",
                "| key | default | allowed | meaning |",
                "| :-- | :-- | :-- | :-- |",
            ]
        lines.append(_row(f"`{entry.key}`", f"`{entry.default}`", entry.allowed, entry.meaning))
    return "\n".join(lines) + "\n"


class Method(NamedTuple):
    """Reference entry of one method.

    Fields:
        name: in configs.
        title: its name, paper and idea, from the docstring.
        module: of its factory.
        needs: its needs in words, such as "a network".
        labels_at: holders of labels that it can learn from.
        leaves: what leaves a client.
        keys: keys of its section.
        docstring: of its module, or of its function where a module has several methods.
    """

    name: str
    title: str
    module: str
    needs: str
    labels_at: tuple[str, ...]
    leaves: str
    keys: list[str]
    docstring: str

    @property
    def short_title(self) -> str:
        """The title up to its citation, which has at most two authors; or up to the colon."""
        cited = re.match(r"([^:]*?)\(([^():]*\d{4}[^():]*)\)", self.title)
        if not cited:
            return re.split(r"[:.]", self.title)[0]
        parts = cited[2].split(", ")
        end = next(i for i, part in enumerate(parts) if re.search(r"\d{4}|\d\.\d|et al", part))
        authors = parts[:end] if end <= 2 else [f"{parts[0]} et al."]
        return f"{cited[1]}({', '.join([*authors, *parts[end:]])})"


def described_methods() -> list[Method]:
    """Return the entries of jaxfed's methods, from their code and docstrings."""
    found = []
    for name, factory in ALGORITHMS.items():
        if name in ALGORITHMS.from_outside():
            continue
        function, given = plain(factory), getattr(factory, "keywords", {})
        module = sys.modules[function.__module__]
        file = module.__name__.rpartition(".")[2]
        said = (function.__doc__ or "", module.__doc__ or "")
        docstring = said[1] if file in (function.__name__, "method") else said[0]
        title = docstring.strip().split("\n")[0].rstrip(".")
        title += "".join(f", {key}={value!r}" for key, value in given.items())
        needed = (text for key, text in INGREDIENTS.items() if key in declared(factory).takes)
        found.append(
            Method(
                name,
                title,
                module.__name__,
                ", ".join(filter(None, needed)) or "features",
                declared(factory).labels_at,
                next(filter(None, map(_leaves, said)), ""),
                [key for key in method_settings(factory) if key not in given],
                docstring,
            )
        )
    return found


def methods_page() -> str:
    """Return the text of `docs/methods.md`."""
    lines = [
        "# Which methods are there?",
        "",
        "Any of them is `config.algorithm` or one of `config.baselines`. This page is made from the code by",
        "`python -m launch.run --help_keys=methods`; a method's file has its equations, costs and departures",
        "from its paper. Which one suits you: [choosing a method](choosing.md).",
        "",
        "| name | method | needs | labels at | what leaves a client | own keys |",
        "| :-- | :-- | :-- | :-- | :-- | :-- |",
    ]
    for method in described_methods():
        keys = ", ".join(f"`{key}`" for key in method.keys) or "none"
        link = f"[`{method.name}`](../{method.module.replace('.', '/')}.py)"
        places = " or ".join(method.labels_at)
        lines.append(_row(link, method.title, method.needs, places, method.leaves, keys))
    return "\n".join(lines) + "\n"


def methods_table() -> str:
    """Return the table of methods in README.md; methods of one factory share a row."""
    lines = [
        "| name | method | labels at | what leaves a client |",
        "| :-- | :-- | :-- | :-- |",
    ]
    rows: dict[tuple[str, ...], list[str]] = {}
    for method in described_methods():
        cells = (method.short_title, " or ".join(method.labels_at), method.leaves)
        rows.setdefault(cells, []).append(f"`{method.name}`")
    lines += [_row(", ".join(names), *cells) for cells, names in rows.items()]
    return "\n".join(lines) + "\n"


PAGES = {
    "page": keys_page,
    "methods": methods_page,
    "table": methods_table,
}  # values of `--help_keys`


def _entry(key: str, one: Setting) -> Entry:
    conditions = " and ".join(map(str, one.conditions))
    meaning = one.meaning.rstrip(".")
    return Entry(
        key,
        "needed" if one.default is REQUIRED else repr(one.default),
        one.allowed,
        f"with {conditions}: {meaning}" if conditions else meaning,
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _leaves(docstring: str) -> str:
    """Return the first sentence of a docstring's "Leaves a client" statement; "" if there is none.

    "Nothing leaves a client" gives "nothing".
    """
    begins = r"(?:Leaves a client: |(?=(?:Nothing|Everything) leaves a client))"
    found = re.search(begins + r"(.*?[.;])(?:\s|$)", docstring, re.DOTALL)
    said = " ".join(found[1].split()).rstrip(".;") if found else ""
    return said.removesuffix(" leaves a client").lower() if said.endswith("a client") else said


def _paragraph(entry: Entry, values: Mapping[str, Any]) -> str:
    value = repr(values[entry.key]) if entry.key in values else entry.default
    head = f"{entry.key} = {value}"
    head += f" (default: {entry.default})" if value != entry.default else ""
    allowed = f" (allowed: {entry.allowed})" if entry.allowed else ""
    text = textwrap.fill(
        f"{entry.meaning}{allowed}".strip(), 100, initial_indent="    ", subsequent_indent="    "
    )
    return f"{head}\n{text}"
