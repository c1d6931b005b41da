"""Assemble a report: choose tables and plots for the runs and sweeps found."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from jaxfed.errors import UsageError
from jaxfed.experiment.store.records import Experiments, Run, Sweep, find, ordered_methods
from jaxfed.host import storage
from jaxfed.host.location import location
from jaxfed.paper_numbers import paper_table
from jaxfed.reports import figures, page, style, tables
from jaxfed.reports.names import (
    markdown_text,
    methods_of,
    metric_label,
    setting_label,
    setting_text,
    slug,
)
from jaxfed.reports.provenance import provenance
from jaxfed.reports.quality import quality_tables
from jaxfed.reports.sweeps import Curve, curves, swept_keys, validated_settings
from jaxfed.reports.tables import Row, Table

HOW = "How it was made"
_MOST_KEYS = 5  # differing settings with a column in the overview
_APART = 0.02  # difference of accuracy and balanced accuracy from which a sweep has tables of both
_OVER_ROUNDS = (
    "Mean over repeats, in rounds that all of them have; the band is one sample deviation."
)
_CLIENTS = (
    "Thin lines are clients' own models in the first repeat, thick ones the mean over clients and repeats. "
    "Below, the deviation over clients (divisor M), mean and one sample deviation over repeats."
)
_CAPTIONS = {
    "algorithms": "Every repeat as a dot; the marker is their mean, the bar one deviation.",
    "partition": "Which client holds how much of which class, in the first repeat.",
    "reliability": "How often labels are right where a method is so sure of them, in bins of equally many "
    "points of all repeats; on the dashed line confidences are probabilities.",
    **dict.fromkeys(("clients", "clients_validation"), _CLIENTS),
}


class Picture(NamedTuple):
    """A plot: its file name without extension, its caption, and a function that draws it."""

    name: str
    caption: str
    draw: Callable[[], Figure]

    def to_markdown(self) -> str:
        """Return the picture in Markdown, relative to the report."""
        return f"![{markdown_text(self.caption)}](plots/{self.name}.png)\n"


# Function of a run, and of a function that makes file names (folder, parts of a name -> file name).
Added = Callable[[Run, Callable[..., str]], Sequence[Table | Picture]]


@dataclass(frozen=True)
class Section:
    """Part of a report about one experiment.

    Attributes:
        title: heading.
        parts: tables and pictures as they are read: each result before its picture.
        missing: workdirs without results.
        origin: pairs of name and text: command, config, data, seeds, commit, device.
    """

    title: str
    parts: Sequence[Table | Picture | None]
    missing: Sequence[str] = ()
    origin: tuple[tuple[str, str], ...] = ()

    @property
    def tables(self) -> list[Table]:
        """The tables among the parts."""
        return [part for part in self.parts if isinstance(part, Table)]

    @property
    def pictures(self) -> list[Picture]:
        """The pictures among the parts."""
        return [part for part in self.parts if isinstance(part, Picture)]

    def to_markdown(self) -> str:
        """Return all but the origin in Markdown."""
        lines = [f"## {markdown_text(self.title)}", ""]
        lines += [f"- no results yet: `{workdir.replace('`', '')}`" for workdir in self.missing]
        return "\n".join([*lines, "", *(part.to_markdown() for part in self.parts if part)])


def write_report(
    workdirs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    added: Added = lambda run, take: (),
    formats: Sequence[str] = (),
) -> Path:
    """Write report.html, report.md, tables/*.csv and *.tex, and plots/*.png for all runs under `workdirs`.

    Args:
        workdirs: of `launch.run` or `launch.sweep`, or folders that contain some at any depth.
        out: output folder; `report` in the first workdir if not given.
        added: function that returns further tables and pictures of a run.
        formats: of plots beside PNG, "pdf" or "svg".

    Returns:
        The path of report.html.

    Raises:
        UsageError: a workdir is missing or holds no run, or `out` cannot be written.
    """
    out_folder = None if out is None else location(out, "--out")
    sections = build(workdirs, added)
    folder = out_folder or location(workdirs[0], "WORKDIR") / "report"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for section in sections:
            for table in section.tables:
                table.write(folder / "tables")
            for picture in section.pictures:
                style.try_to_write(picture.draw, folder / "plots" / f"{picture.name}.png", formats)
        text = _markdown(sections)
        for name, content in (("report.md", text), ("report.html", page.render(text, folder))):
            with storage.whole_file(folder / name) as stream:
                stream.write(content)
    except OSError as error:
        raise UsageError(f"--out={folder}: {error.filename}: {error.strerror}") from error
    return folder / "report.html"


def build(
    workdirs: Sequence[str | os.PathLike[str]], added: Added = lambda run, take: ()
) -> list[Section]:
    """Return the sections: an overview of several runs, each sweep, each run, the papers' tables."""
    if not workdirs:
        raise UsageError("give a workdir of launch.run or launch.sweep")
    experiments, take = find(workdirs), _names()
    sections = [_overview(experiments.runs, take)] if len(experiments.runs) > 1 else []
    sections += [_sweep_section(sweep, take) for sweep in experiments.sweeps]
    sections += [_run_section(run, take, added) for run in experiments.runs]
    return sections + _papers(experiments, take)


def _names() -> Callable[..., str]:
    """Return a generator of file names: (folder, parts of a name) -> a name that is unique there."""
    taken: set[tuple[str, str]] = set()

    def take(folder: str, *parts: str) -> str:
        wanted = slug("-".join(parts))
        tries = itertools.chain([wanted], (f"{wanted}-{number}" for number in itertools.count(2)))
        name = next(name for name in tries if (folder, name) not in taken)
        taken.add((folder, name))
        return name

    return take


def _overview(runs: Sequence[Run], take: Callable[..., str]) -> Section:
    keys = tables.differing_keys(runs)[:_MOST_KEYS]
    rows = [Row([run.name, *(run.settings.get(key, "") for key in keys)], run) for run in runs]
    metric = tables.primary_metric(runs) or "test_accuracy"
    named = take("tables", "overview"), "All runs"
    table = tables.settings_table(*named, ["run", *keys], rows, metric)
    return Section("Overview", [table])


def _run_section(run: Run, take: Callable[..., str], added: Added) -> Section:
    if not run.finished:
        return Section(run.name, (), [os.fspath(run.workdir)])
    table = tables.run_table(run, take("tables", run.name))
    pictures = [
        Picture(take("plots", run.name, name), _CAPTIONS.get(name, _OVER_ROUNDS), draw)
        for name, draw in figures.run_plots(run).items()
    ]
    of_rows = take("tables", run.name, "measures"), take("tables", run.name, "clients")
    measured = quality_tables(run, of_rows)
    parts = [table, *pictures, *measured, *added(run, take)]
    return Section(run.name, parts, origin=provenance([run]))


def _sweep_section(sweep: Sweep, take: Callable[..., str]) -> Section:
    runs = [point.run for point in sweep.points if point.run is not None and point.run.finished]
    left = [point for point in sweep.points if point.run is None or not point.run.finished]
    missing = [os.fspath(sweep.workdir / point.name) for point in left]
    metric = tables.primary_metric(runs)
    if metric is None:
        return Section(sweep.name, (), missing)
    sweep_curves = curves(sweep)
    parts: list[Table | Picture | None] = []
    for key in dict.fromkeys(curve.key for curve in sweep_curves):
        family = [curve for curve in sweep_curves if curve.key == key]
        keys = [*dict.fromkeys(other for curve in family for other in curve.fixed), key]
        points = [point for curve in family for point in curve.points]
        result, *gains = _point_tables(sweep, setting_label(key), key, keys, points, metric, take)
        pictures = [_curve_picture(sweep, curve, metric, take) for curve in family]
        parts += [result, *pictures, *gains]
    drawn = {point.name for curve in sweep_curves for point in curve.points}
    keys = swept_keys(sweep)
    if rest := [point for point in sweep.points if point.name not in drawn]:
        title, of = f"{'other ' if sweep_curves else ''}points", keys or list(sweep.base)
        parts += _point_tables(sweep, title, "points", of or ["point"], rest, metric, take)
    parts.append(validated_settings(sweep, metric, take("tables", sweep.name, "validated")))
    at_base = (
        point.run
        for point in sweep.points
        if all(sweep.base[key] == value for key, value in point.overrides.items())
    )
    base = next((run for run in at_base if run in runs), None)
    for kind, draw in figures.run_plots(base).items() if base else ():
        if kind in ("partition", "reliability"):
            caption = f"{_CAPTIONS[kind][:-1]}, at the config's own values."
            parts.append(Picture(take("plots", sweep.name, kind), caption, draw))
    return Section(sweep.name, parts, missing, provenance(runs, sweep.command))


def _point_tables(
    sweep: Sweep,
    title: str,
    part: str,
    keys: Sequence[str],
    points: Sequence[Any],
    metric: str,
    take: Callable[..., str],
) -> Iterator[Table | None]:
    """Yield tables of methods and of gains at these points; with unequal classes balanced accuracies, too."""
    rows, title = [_row(sweep, point, keys) for point in points], f"{sweep.name}, {title}"
    both = ("test_accuracy", "test_balanced_accuracy")
    measured = [m for row in rows if row.run for m in row.run.results.values()]
    apart = [abs(m[both[0]].mean - m[both[1]].mean) for m in measured if all(b in m for b in both)]
    also = [both[1]] if metric == both[0] and max(apart, default=0) >= _APART else []
    for measure in (metric, *also):
        name = "tables", sweep.name, part, *([measure] if measure in also else [])
        yield tables.settings_table(take(*name), title, keys, rows, measure)
        yield tables.gains_table(take(*name, "gains"), title, keys, rows, measure)


def _row(sweep: Sweep, point: Any, keys: Sequence[str]) -> Row:
    """Return the row of a point: its values of some keys, or its name if there are no keys."""
    values = [sweep.value(point, key) for key in keys if key != "point"]
    return Row(values or [point.name], point.run)


def _curve_picture(
    sweep: Sweep, curve: Curve, metric: str, take: Callable[..., str]
) -> Picture | None:
    runs = [point.run for point in curve.points]
    values = [sweep.value(point, curve.key) for point in curve.points]
    present, fixed = [run for run in runs if run is not None], curve.fixed.items()
    title = ", ".join(f"{setting_label(key)} {setting_text(value)}" for key, value in fixed)
    series = {
        method: [run.results.get(method, {}).get(metric) if run else None for run in runs]
        for method in ordered_methods(present)
    }
    series = {method: measurements for method, measurements in series.items() if any(measurements)}
    if not series:
        return None
    against = f"against {setting_label(curve.key)}{f' at {title}' * bool(title)}"
    caption = (
        f"{metric_label(metric)} {against}. Mean over repeats; error bars are one sample deviation."
    )
    draw = partial(figures.curve_figure, curve.key, values, series, metric, title=title)
    name = take("plots", sweep.name, curve.key, title)
    return Picture(name, caption, partial(draw, methods=methods_of(present)))


def _papers(experiments: Experiments, take: Callable[..., str]) -> list[Section]:
    """Return one section with every paper's table that a config names, each once."""
    points = [point.run for sweep in experiments.sweeps for point in sweep.points]
    runs = [*experiments.runs, *(run for run in points if run is not None)]
    wanted = sorted({name for run in runs if (name := run.config.get("paper_table"))})
    paper_tables = [
        tables.paper_orientation(paper_table(name), take("tables", "paper", name))
        for name in wanted
    ]
    return [Section("From the papers", paper_tables)] if paper_tables else []


def _markdown(sections: Sequence[Section]) -> str:
    lines = ["# Report", "", *(section.to_markdown() for section in sections)]
    made = {section.title: section.origin for section in sections if section.origin}
    common = [
        fact for fact in next(iter(made.values()), ()) if all(fact in o for o in made.values())
    ]
    if made:
        lines += [f'<details markdown="1"><summary>{HOW}</summary>', ""]
        for title, origin in (("", common), *made.items()):
            facts = [fact for fact in origin if not title or fact not in common]
            lines += [f"### {markdown_text(title)}", ""] if title and facts else []
            lines += [*(f"- {name}: {_fact(name, text)}" for name, text in facts), ""]
        lines.append("</details>")
    return "\n".join(lines).rstrip() + "\n"


def _fact(name: str, text: str) -> str:
    """Return a line of the provenance; commands are an indented block of code."""
    if name != "command" or text == "not recorded":
        return markdown_text(text)
    return "\n" + "".join(f"\n      {line}" for line in text.split("\n"))
