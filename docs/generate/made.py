"""Pages that are made from code and results: one a method, the leaderboard, the gallery."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from docs.generate import reference
from jaxfed.config.overrides import entries
from jaxfed.reports.report import HOW

_CELL = re.compile(r"\*\*|\s[†‡]")
_FACTS = ("seeds", "commit", "device")
_HEADING = re.compile(r"^### (.+)$", re.MULTILINE)


def methods(root: Path) -> dict[str, str]:
    """Return a page for each method: its docstring, its keys, where it has results."""

    described, keys = reference.described_methods(), entries()
    ranked = list(_tables(root))
    found = {}
    for method in described:
        declared, body = method.declared, method.docstring.strip().partition("\n")[2]
        lines = [f"# {method.name}", "", f"{method.cited(declared.cites)}: {method.idea}.", ""]
        lines += [f"* **Needs**: {method.needs}"]
        lines += [f"* **Labels at**: {method.labels_at}"]
        lines += [f"* **Leaves a client**: {declared.leaves}"]
        lines += [f"* **On a network**: {method.on_network}"]
        source = f"../../{method.module.replace('.', '/')}.py"
        lines += [f"* **Source**: [`{method.module}`]({source})", ""]
        lines += ["## Run it", "", "    python -m launch.run --config=CONFIG --workdir=DIR \\"]
        lines += [f"        --config.algorithm={method.name}", ""]
        lines += [
            "[Experiments](../experiments.md) lists configs; [choosing](../choosing.md) says when.",
            "",
        ]
        if body.strip():
            lines += ["## What it does", "", _prose(textwrap.dedent(body).strip("\n")), ""]
        own = [entry for entry in keys if entry.key.startswith(f"{method.name}.")]
        if own:
            lines += [
                "## Keys",
                "",
                "| key | default | allowed | meaning |",
                "| :-- | :-- | :-- | :-- |",
            ]
            lines += [
                "| "
                + " | ".join(
                    cell.replace("|", "\\|")
                    for cell in (f"`{e.key}`", f"`{e.default}`", e.allowed, e.meaning)
                )
                + " |"
                for e in own
            ]
            lines.append("")
        else:
            base = method.module.rpartition(".")[2]
            lines += ["## Keys", "", f"None of its own beside those of [`{base}`](../keys.md).", ""]
        lines += ["## Results", "", *_results_of(declared.title, ranked)]
        found[f"methods/{method.name}.md"] = "\n".join(lines) + "\n"
    return found


def leaderboard(root: Path) -> dict[str, str]:
    """Return the page of all committed accuracy tables, each row's methods from best to worst."""
    lines = [
        "# Which method is best where?",
        "",
        "Every committed table of test accuracy, with each row's methods from best to worst:",
        "mean ± standard deviation over the seeds, in percent. This page is made from the reports in",
        "`results/`. They have each table with its command, its config, and differences paired by seed.",
        "Neighbors in a ranking may be within noise of each other. Tables of different settings cannot be",
        "compared.",
        "",
    ]
    folder = None
    for table in _tables(root):
        if table.folder != folder:
            folder = table.folder
            lines += [f"## {folder}", ""]
        lines += [f"**{table.title}** ([report](../{table.report})): {table.made}", ""]
        lines += ["| setting | best to worst |", "| :-- | :-- |"]
        for setting, ranking in table.rows:
            text = ", ".join(f"{name} {cell}" for name, cell in ranking)
            lines.append(f"| {setting} | {text} |")
        lines.append("")
    return {"leaderboard.md": "\n".join(lines)}


def gallery(root: Path) -> dict[str, str]:
    """Return the page of all committed pictures, by folder."""
    lines = [
        "# What do its plots look like?",
        "",
        "Every picture that is committed in `results/`, by its folder. `launch.run` and `launch.report` made",
        "them; a folder's page has the commands.",
        "",
    ]
    by_folder = defaultdict(list)
    for path in sorted((root / "results").rglob("*.png")):
        by_folder[path.relative_to(root).parts[1]].append(path.relative_to(root))
    for folder, paths in by_folder.items():
        lines += [f"## {folder}", "", f"[Commands and tables](../results/{folder}/README.md)", ""]
        for path in paths:
            name = path.stem.replace("-", " ").replace("_", " ")
            lines += [f"![{name}](../{path})", ""]
        lines.append("")
    return {"gallery.md": "\n".join(lines)}


def _prose(docstring: str) -> str:
    """Return a docstring as Markdown: formulas stay blocks, and no sign of prose is markup."""
    blocks = re.split(r"\n\s*\n", docstring)
    found: list[str] = []
    for block in blocks:
        if block.startswith("    "):
            found.append(block)
        else:
            parts = re.split(r"(`[^`]*`)", block)
            parts[::2] = [re.sub(r"(?<!^)([*_<])", r"\\\1", part) for part in parts[::2]]
            found.append("".join(parts))
    return "\n\n".join(found)


class _Table:
    """A table of accuracies in a report."""

    def __init__(self, report: str, title: str, text: str) -> None:
        """Parse the table below a heading."""
        self.report, self.folder = report, report.split("/")[1]
        self.title = title.removesuffix(" [%]")
        grid = [
            [cell.strip() for cell in line.strip()[1:-1].split("|")]
            for line in text.splitlines()
            if line.startswith("|")
        ]
        head = grid[0] if grid else []
        self.rows = []
        differences = {i for i, name in enumerate(head) if "−" in name}
        # A score has a deviation in some row; every other column says what the row's setting is.
        scored = {i for cells in grid[2:] for i, cell in enumerate(cells) if " ± " in cell}
        for cells in grid[2:]:
            others = [
                f"{head[i]} {_CELL.sub('', cell)}".replace("run ", "")
                for i, cell in enumerate(cells)
                if i not in scored | differences and cell not in ("", "–")
            ]
            scores = [
                (head[i], _CELL.sub("", cells[i]))
                for i in sorted(scored - differences)
                if " ± " in cells[i]
            ]
            if scores:
                by_score = sorted(scores, key=lambda score: -float(score[1].split(" ")[0]))
                self.rows.append((", ".join(others) or "–", by_score))
        facts = dict(re.findall(rf"^- ({'|'.join(_FACTS)}): (.+)$", text, re.MULTILINE))
        self.made = "; ".join(f"{key} {facts[key]}" for key in _FACTS if key in facts)


def _tables(root: Path) -> list[_Table]:
    found = []
    for path in sorted((root / "results").rglob("report.md")):
        shown, _, how = path.read_text().replace("\xa0", " ").partition(f"<summary>{HOW}</summary>")
        common, *of_experiments = _HEADING.split(how)
        origin = dict(zip(of_experiments[::2], of_experiments[1::2], strict=True))
        parts = _HEADING.split(shown)
        for title, text in zip(parts[1::2], parts[2::2], strict=True):
            own = "".join(facts for name, facts in origin.items() if title.startswith(name))
            if "accuracy [%]" in title and "gains" not in title and "paper" not in title:
                table = _Table(path.relative_to(root).as_posix(), title, text + common + own)
                if table.rows:
                    found.append(table)
    return found


def _results_of(label: str, tables: list[_Table]) -> list[str]:
    lines = []
    for table in tables:
        for setting, ranking in table.rows:
            rank = next((i for i, (name, _) in enumerate(ranking) if name == label), None)
            if rank is not None:
                lines.append(
                    f"| [{table.folder}](../../{table.report}) | {setting} | {ranking[rank][1]} | "
                    f"{rank + 1} of {len(ranking)} |"
                )
    if not lines:
        return [
            "No committed table of accuracies has this method; [what has been measured](../results.md)."
        ]
    head = ["| results | setting | accuracy, % | rank |", "| :-- | :-- | --: | --: |"]
    shown = lines if len(lines) <= 25 else lines[:25]
    rest = (
        []
        if len(lines) <= 25
        else ["", f"{len(lines) - 25} more rows: [leaderboard](../leaderboard.md)."]
    )
    return [*head, *shown, *rest]


MADE: list[Callable[[Path], dict[str, str]]] = [methods, leaderboard, gallery]
