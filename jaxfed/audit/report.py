"""Tables and figure of an audit: accuracy against vulnerability, one row and one point for each method.

audit/vulnerability.csv, .md     methods: accuracy, AUC of the strongest attack, TPR at low FPR
audit/messages.csv               the same for each kind of message
audit/attacks.csv                every single attack
audit/audit.json                 all results
audit/vulnerability.png          accuracy against AUC
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store.records import Run, read_json
from jaxfed.experiment.store.workdir import AUDIT as FOLDER
from jaxfed.experiment.store.workdir import write_json
from jaxfed.host import storage
from jaxfed.host.storage import write_csv
from jaxfed.reports.names import USUAL, Methods, methods_of
from jaxfed.reports.report import Picture
from jaxfed.reports.style import (
    INK,
    LABELED,
    MUTED,
    dress,
    fit,
    new_figure,
    plain,
    text_width,
    try_to_write,
)
from jaxfed.reports.tables import Table

_RESULTS = f"{FOLDER}/{FOLDER}.json"
_SHOWN = 6  # columns of the table that a terminal has room for
_NAME_SIZE = 8  # points
_MOVES = 200  # iterations that separate overlapping names

COLUMNS = (
    *("method", "adversary", "accuracy", "accuracy_spread", "accuracy_on"),
    *("message", "round", "attack", "shadows", "leaves"),
    *("auc", "low", "high", "spread", "tpr_at_1_percent"),
    *("tpr_at_none", "tpr_at_none_low", "tpr_at_none_high", "members", "others", "others_at_once"),
)
_IN_A_PERCENT = 100  # non-members needed to measure a false-positive rate of 1 %
_CAPTION = (
    "Accuracy against membership inference; bars are 95 % intervals and deviations over repeats. Left and up "
    "is better; gray is what never leaves a client."
)
_ASKED = "†"
_WHICH_ACCURACY = (
    f"{_ASKED} Of a method that is tested on nothing held out, and so has no test accuracy: that of its last "
    "message on the held-out examples that the attacks ask about."
)
HEADINGS = (
    *("Method", "Adversary", "Test accuracy [%]", "AUC", "95 % interval", "TPR at 1 % FPR [%]"),
    *("TPR at no false positive among n [%]", "Strongest attack"),
)


def read_audit(workdir: Path) -> dict[str, Any] | None:
    """Read audit.json of the run in a directory; None if it has no audit."""
    return read_json(workdir, _RESULTS) if (workdir / _RESULTS).exists() else None


def write_audit(audit: Mapping[str, Any], run: Run) -> None:
    """Write audit.json, its tables and its figure."""
    folder, methods = run.workdir / FOLDER, methods_of([run])
    for name, rows in (
        ("vulnerability", audit["methods"]),
        ("messages", audit["messages"]),
        ("attacks", audit["attacks"]),
    ):
        write_csv(folder / f"{name}.csv", COLUMNS, map(_in_columns, rows))
    with storage.whole_file(folder / "vulnerability.md") as stream:
        stream.write(vulnerability_table(audit["methods"], methods))
    write_json(folder / "audit.json", audit)
    file = folder / "vulnerability.png"
    try_to_write(lambda: vulnerability_figure(audit["methods"], methods), file)


def show_audit(progress: RunProgress, run: Run) -> None:
    """Print the table of vulnerabilities, its footnotes, and the location of the audit."""
    if (audit := read_audit(run.workdir)) is None:
        return
    rows = [cells[:_SHOWN] for cells in table_rows(audit["methods"], methods_of([run]))]
    title = "membership inference, strongest attack"
    progress.show_table(HEADINGS[:_SHOWN], rows, num_texts=2, title=title)
    for line in which_accuracy(audit["methods"]):
        progress.say(line)
    progress.say(f"the audit is in {run.workdir / FOLDER}")


def parts_of(run: Run, take: Callable[..., str]) -> list[Table | Picture]:
    """Return the table and the figure of an audited run for a report; [] for another run.

    Args:
        run: finished.
        take: folder, parts of a name -> file name (`jaxfed.reports.report`).
    """
    if (audit := read_audit(run.workdir)) is None:
        return []
    draw = partial(vulnerability_figure, audit["methods"], methods_of([run]))
    return [
        audit_table(audit, run, take("tables", run.name, FOLDER)),
        Picture(take("plots", run.name, FOLDER), _CAPTION, draw),
    ]


def vulnerability_table(rows: Sequence[Mapping[str, Any]], methods: Methods = USUAL) -> str:
    """Return the vulnerability table in Markdown."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells) + " |" for cells in table_rows(rows, methods)]
    return "\n".join([*lines, *(f"\n{line}" for line in which_accuracy(rows))]) + "\n"


def which_accuracy(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the footnote on marked accuracies, as a list that is empty if no row has the mark."""
    return [_WHICH_ACCURACY] if any(map(_is_asked, rows)) else []


def _is_asked(row: Mapping[str, Any]) -> bool:
    return bool(row.get("accuracy_on") == "asked")


def audit_table(audit: Mapping[str, Any], run: Run, name: str) -> Table:
    """Return the vulnerability table for a report, with all numbers of its methods in the CSV."""
    rounds = ", ".join(map(str, audit["rounds"]))
    return Table(
        name=name,
        title=f"{run.name}: membership inference",
        columns=HEADINGS,
        rows=table_rows(audit["methods"], methods_of([run])),
        num_settings=2,
        caption=(
            "AUC of the strongest attack on what a method sends: 0.5 is a guess. Messages of round "
            f"{rounds}; {audit['shadows']} shadow models."
            + "".join(f" {line}" for line in which_accuracy(audit["methods"]))
        ),
        records=map(_in_columns, audit["methods"]),
    )


def _in_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    return {column: row.get(column) for column in COLUMNS}


def table_rows(rows: Sequence[Mapping[str, Any]], methods: Methods) -> Iterator[list[str]]:
    """Yield rows, least vulnerable first; methods that reveal nothing to anybody come before all others."""
    for row in sorted(rows, key=lambda row: row.get("auc", 0.0)):
        accuracy = _percent(row["accuracy"], row["accuracy_spread"]) + f" {_ASKED}" * _is_asked(row)
        cells = [methods.name(row["method"]), row["adversary"] or "–", accuracy]
        if "auc" in row:
            cells += [
                f"{row['auc']:.3f}",
                f"{row['low']:.3f} to {row['high']:.3f}",
                _percent(row["tpr_at_1_percent"])
                if row["others_at_once"] >= _IN_A_PERCENT
                else "–",
                f"{_percent(row['tpr_at_none'])} ({_percent(row['tpr_at_none_low'])} to "
                f"{_percent(row['tpr_at_none_high'])}; n = {row['others_at_once']})",
                attack_text(row),
            ]
        else:
            cells += ["–"] * 4 + [row["attack"] or "nothing is seen"]
        yield cells


def attack_text(row: Mapping[str, Any]) -> str:
    """Return the attack's name without its prefix; attacks on data that never leaves a client are marked."""
    text = row["attack"].partition(": ")[2] or row["attack"]
    return text if row["leaves"] else f"{text} (which nobody has)"


def vulnerability_figure(rows: Sequence[Mapping[str, Any]], methods: Methods = USUAL) -> Figure:
    """Plot accuracy against the AUC of the strongest attack, with its interval; left and up is better.

    The points are annotated with names, because there are more methods than distinguishable colors. Names
    stand right of the axes. A dotted line runs from a point to the edge, and from there to its name; no two
    cross, as points and names have the same order.
    """
    drawn = [row for row in rows if "auc" in row and row["accuracy"] is not None]
    drawn.sort(key=lambda row: row["accuracy"])
    names = [plain(_point_name(row, drawn, methods)) for row in drawn]
    room = max((text_width(name, _NAME_SIZE) for name in names), default=0.0)
    figure = new_figure(5.8 + room, max(4.6, 1.2 + 0.17 * len(drawn)))
    ax = figure.subplots()
    dress(ax, xlabel="Vulnerability, AUC of the strongest attack", ylabel="Test accuracy [%]")
    ax.axvline(0.5, color=MUTED, linestyle="--", linewidth=1)
    for row in drawn:
        ax.errorbar(
            row["auc"],
            100 * row["accuracy"],
            xerr=[[row["auc"] - row["low"]], [row["high"] - row["auc"]]],
            yerr=100 * row["accuracy_spread"] if row["accuracy_spread"] else None,
            color=LABELED if row["leaves"] else MUTED,
            marker="o",
            markersize=5,
            linestyle="none",
            capsize=2,
        )
    if drawn:
        fit(ax, "accuracy", "y")
        ax.set_xlim(right=max(row["high"] for row in drawn) + 0.02)
    edge, beside = ax.get_xlim()[1], ax.get_yaxis_transform()
    low, high = ax.get_ylim()
    needed = (high - low) / max(20, len(drawn))
    heights = _apart([100 * row["accuracy"] for row in drawn], needed)
    line: dict[str, Any] = {"color": MUTED, "linewidth": 0.6, "linestyle": ":"}
    for row, name, height in zip(drawn, names, heights, strict=True):
        accuracy = 100 * row["accuracy"]
        ax.plot([row["high"], edge], [accuracy] * 2, **line)
        ax.plot([1, 1.04], [accuracy, height], transform=beside, clip_on=False, **line)
        ax.text(1.05, height, name, transform=beside, va="center", fontsize=_NAME_SIZE, color=INK)
    return figure


def _point_name(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], methods: Methods) -> str:
    """Return the method's name, followed by adversary and AUC if the method has several."""
    name = methods.name(row["method"])
    several = sum(one["method"] == row["method"] for one in rows) > 1
    return f"{name} ({row['adversary']}, {row['auc']:.2f})" if several else name


def _apart(heights: Sequence[float], needed: float) -> list[float]:
    """Move ascending heights apart, as little as `needed` to keep names from overlapping."""
    placed = np.asarray(heights, np.float64)
    for _ in range(_MOVES):
        lacking = np.maximum(needed - np.diff(placed), 0) / 2
        placed[:-1] -= lacking
        placed[1:] += lacking
    return placed.tolist()


def _percent(value: float | None, spread: float | None = None) -> str:
    if value is None:
        return "–"
    text = f"{100 * value:z.1f}"
    return text if spread is None else f"{text} ± {100 * spread:.1f}"
