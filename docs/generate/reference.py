"""Pages of settings and methods, and README's table of methods, made from the code.

python -m docs.generate.reference keys > docs/keys.md
python -m docs.generate.reference methods > docs/methods.md
python -m docs.generate.reference table           # into README.md
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.reference import entries
from jaxfed.federation.method import INGREDIENTS, declared, method_settings, plain


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
    """Return the methods of jaxfed, described by their code."""
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
        "`docs/generate/reference.py`; a method's file has its equations, costs and departures",
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


PAGES = {"keys": keys_page, "methods": methods_page, "table": methods_table}


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


if __name__ == "__main__":
    print(PAGES[sys.argv[1]](), end="")
