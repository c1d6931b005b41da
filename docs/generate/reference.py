"""Pages of settings and methods, made from the code.

python -m docs.generate.reference keys > docs/keys.md
python -m docs.generate.reference methods > docs/methods.md
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jaxfed.algorithms import ALGORITHMS, declaration_of
from jaxfed.config.overrides import entries
from jaxfed.federation.method import INGREDIENTS, Method, plain


def keys_page() -> str:
    """Return the text of `docs/keys.md`."""
    lines = [
        "# Which settings are there?",
        "",
        "Every key of a config, set by `--config.KEY=VALUE` or in a config file. This page is made from the",
        "code by `docs/generate/reference.py`; `launch.run --help_keys=PREFIX` prints keys with a prefix.",
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


class Entry(NamedTuple):
    """Reference entry of one method.

    Fields:
        name: in configs.
        declared: its declaration.
        factory: its function.
        given: keywords that a preset gives it.
    """

    name: str
    declared: Method
    factory: Callable[..., Any]
    given: Mapping[str, Any]

    @property
    def module(self) -> str:
        """The module of its factory."""
        return self.factory.__module__

    @property
    def docstring(self) -> str:
        """The docstring of its file, whose first line is "TITLE: its idea.", or else its own."""
        return inspect.unwrap(self.factory).__globals__["__doc__"] or self.factory.__doc__ or ""

    @property
    def idea(self) -> str:
        """The first line of its docstring without the title; or what a preset gives its method."""
        if self.given:
            given = ", ".join(f"{key} {value!r}" for key, value in self.given.items())
            return f"{self.factory.__name__} with {given}"
        line = self.docstring.strip().partition("\n")[0].rstrip(".")
        return line.removeprefix(f"{self.declared.title}: ")

    @property
    def needs(self) -> str:
        """Its needs in words, such as "a network"."""
        takes = self.declared.takes
        return (
            ", ".join(text for key, text in INGREDIENTS.items() if text and key in takes)
            or "features"
        )

    @property
    def labels_at(self) -> str:
        """Holders of labels that it can learn from."""
        return " or ".join(self.declared.labels_at)

    @property
    def on_network(self) -> str:
        """Answer, "yes" or "no"."""
        return "yes" if self.declared.on_network else "no"

    def cited(self, cites: str) -> str:
        """Return the title with a citation behind it."""
        return f"{self.declared.title} ({cites})" if cites else self.declared.title


def described_methods(names: Iterable[str] | None = None) -> list[Entry]:
    """Return the entries of methods, by default of all in jaxfed."""
    found = []
    for name in names or (name for name in ALGORITHMS if name not in ALGORITHMS.from_outside()):
        factory = ALGORITHMS[name]
        given = getattr(factory, "keywords", {})
        found.append(Entry(name, declaration_of(name), plain(factory), given))

    def rank(entry: Entry) -> tuple[Any, ...]:
        return not entry.declared.one_shot, entry.declared.has_learners, entry.factory.__name__

    return sorted(found, key=rank)


def methods_page(names: Iterable[str] | None = None) -> str:
    """Return the text of `docs/methods.md`."""
    lines = [
        "# Which methods are there?",
        "",
        "Any of them is `config.algorithm` or one of `config.baselines`. This page is made from the code by",
        "`docs/generate/reference.py`; a method's file has its equations, costs and departures",
        "from its paper. Which one suits you: [choosing a method](choosing.md). Keys: [settings](keys.md).",
        "",
        "Methods with XCLP's pseudo-labels send what `xclp` sends as well. With protocols, and with model",
        "changes summed under masks (`training.sums`), the server sees less: [who learns what](privacy.md).",
        "",
        "| name | method | idea | needs | labels at | what leaves a client | on a network |",
        "| :-- | :-- | :-- | :-- | :-- | :-- | :-- |",
    ]
    for entry in described_methods(names):
        link = f"[`{entry.name}`](../{entry.module.replace('.', '/')}.py)"
        cited, leaves = entry.cited(entry.declared.cites), entry.declared.leaves
        cells = entry.labels_at, leaves, entry.on_network
        lines.append(_row(link, cited, entry.idea, entry.needs, *cells))
    return "\n".join(lines) + "\n"


PAGES = {"keys": keys_page, "methods": methods_page}


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(PAGES[sys.argv[1]](), end="")
