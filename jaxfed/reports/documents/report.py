"""Assemble a report: choose tables and plots for the runs and sweeps found."""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jaxfed.errors import UsageError
from jaxfed.experiment.store.records import (
    Found,
    Measurement,
    PointRecord,
    Run,
    Sweep,
    find,
    ordered_methods,
)
from jaxfed.host import storage
from jaxfed.host.location import location
from jaxfed.paper_numbers import paper_table
from jaxfed.reports.documents import page
from jaxfed.reports.documents.sections import HOW, Picture, Section, origins
from jaxfed.reports.figures import line_figures, plots, png, reliability_figure
from jaxfed.reports.figures.style import MOST_LINES
from jaxfed.reports.tables import sites, tables
from jaxfed.reports.tables.curves import (
    Curve,
    curves,
    families,
    merged_values,
    swept_keys,
)
from jaxfed.reports.tables.display_names import (
    markdown_text,
    metric_label,
    setting_label,
    setting_text,
)
from jaxfed.reports.tables.method_names import methods_of
from jaxfed.reports.tables.provenance import provenance
from jaxfed.reports.tables.selection import chosen_settings, validated_settings
from jaxfed.reports.tables.sweep_tables import beside_tables, family_tables, other_keys, row_of
from jaxfed.reports.tables.tables import Table
from jaxfed.reports.tables.target_table import target_table

# Function of a run, and of a function that makes file names (folder, parts of a name -> file name).
Added = Callable[[Run, Callable[..., str]], Sequence[Table | Picture]]


def _nothing(run: Run, take: Callable[..., str]) -> Sequence[Table | Picture]:
    return ()


def write_report(
    workdirs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    target: float | None = None,
    added: Added = _nothing,
) -> Path:
    """Write report.html, report.md, tables/*.csv and plots/*.png for all runs under `workdirs`.

    Args:
        workdirs: of `launch.run` or `launch.sweep`, or folders that contain some at any depth.
        out: output folder; `report` in the first workdir if not given.
        target: accuracy in [0, 1]; each run gets a table of what its methods take to it.
        added: function that returns further tables and pictures of a run, such as those of its audit.

    Returns:
        The path of report.html.

    Raises:
        UsageError: a workdir is missing or holds no run, or `out` cannot be written.
    """
    given = None if out is None else location(out, "--out")
    sections = build(workdirs, target, added)
    folder = given or location(workdirs[0], "WORKDIR") / "report"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for section in sections:
            for table in section.tables:
                table.write_csv(folder / "tables" / f"{table.name}.csv")
            for picture in section.pictures:
                file = folder / "plots" / f"{picture.name}.png"
                png.try_to_write(picture.draw, file)
        text = _markdown(sections)
        for name, content in (("report.md", text), ("report.html", page.render(text, folder))):
            with storage.whole_file(folder / name) as stream:
                stream.write(content)
    except OSError as error:
        raise UsageError(f"--out={folder}: {error.filename}: {error.strerror}") from error
    return folder / "report.html"


def build(
    workdirs: Sequence[str | os.PathLike[str]],
    target: float | None = None,
    added: Added = _nothing,
) -> list[Section]:
    """Return the sections: an overview of several runs, each sweep, each run, the papers' tables."""
    if not workdirs:
        raise UsageError("give a workdir of launch.run or launch.sweep")
    found = find(workdirs)
    names = _Names()
    sections = []
    if len(found.runs) > 1:
        sections.append(_overview(found.runs, names))
    sections += [_sweep_section(sweep, names) for sweep in found.sweeps]
    if target is not None and not found.runs:
        raise UsageError(f"--target={target:g}: for runs alone, and there is none here")
    sections += [_run_section(run, names, target, added) for run in found.runs]
    return sections + _papers(found, names)


class _Names:
    """Generator of file names that are unique in their folder."""

    def __init__(self) -> None:
        self._taken: set[tuple[str, str]] = set()

    def take(self, folder: str, *parts: str) -> str:
        wanted = tables.slug("-".join(parts))
        tries = itertools.chain([wanted], (f"{wanted}-{number}" for number in itertools.count(2)))
        name = next(name for name in tries if (folder, name) not in self._taken)
        self._taken.add((folder, name))
        return name


def _overview(runs: Sequence[Run], names: _Names) -> Section:
    differing = tables.differing_keys(runs)
    keys, more = differing[:_MOST_KEYS], differing[_MOST_KEYS:]
    rows = [
        tables.Row([run.name, *(run.settings.get(key, "") for key in keys)], run) for run in runs
    ]
    metric = tables.primary_metric(runs) or "test_accuracy"
    table = tables.settings_table(
        names.take("tables", "overview"), "All runs", ["run", *keys], rows, metric
    )
    if more:
        named = ", ".join(more[:_MOST_KEYS])
        if len(more) > _MOST_KEYS:
            named += f", … ({len(more)} in all)"
        left_out = f" Without a column, and not equal in all runs: {named}."
        table = replace(table, caption=table.caption + left_out)
    chosen = chosen_settings(
        names.take("tables", "overview", "chosen"), "All runs", ["run", *keys], rows
    )
    return Section("Overview", (table, *_there(chosen)))


def _run_section(run: Run, names: _Names, target: float | None, added: Added) -> Section:
    if not run.finished:
        return Section(run.name, (), (os.fspath(run.workdir),))
    table = tables.run_table(run, names.take("tables", run.name))
    captions = {
        "algorithms": "Every repeat as a dot; the marker is their mean, the bar one deviation.",
        "partition": _PARTITION_CAPTION,
        "reliability": reliability_figure.CAPTION,
        **dict.fromkeys(("clients", "clients_validation"), _CLIENTS_CAPTION),
    }
    over_rounds = (
        "Mean over repeats, in rounds that all of them have; the band is one sample deviation."
    )
    pictures = [
        Picture(names.take("plots", run.name, name), captions.get(name, over_rounds), draw)
        for name, draw in plots.run_plots(run).items()
    ]
    chosen = chosen_settings(
        names.take("tables", run.name, "chosen"), run.name, ["run"], [tables.Row([run.name], run)]
    )
    taken = (
        None
        if target is None
        else target_table(run, target, names.take("tables", run.name, "target"))
    )
    found_there = _there(taken, sites.table_of(run, names.take("tables", run.name, "sites")))
    parts = [table, *found_there, *pictures, *_there(chosen), *added(run, names.take)]
    return Section(run.name, tuple(parts), origin=provenance([run]))


def _there(*found: Table | None) -> tuple[Table, ...]:
    return tuple(table for table in found if table is not None)


_MOST_KEYS = 5  # differing settings with a column in the overview, and as many named below it
_CLIENTS_CAPTION = (
    "Thin lines are clients' own models in the first repeat, thick ones the mean over clients and repeats. "
    "Below, the deviation over clients (divisor M), mean and one sample deviation over repeats."
)
_PARTITION_CAPTION = "Which client holds how much of which class, in the first repeat."


def _sweep_section(sweep: Sweep, names: _Names) -> Section:
    runs = [point.run for point in sweep.points if point.run is not None and point.run.finished]
    left = [point for point in sweep.points if point.run is None or not point.run.finished]
    unfinished = tuple(os.fspath(sweep.workdir / p.name) for p in left if not p.failure)
    failed = tuple((os.fspath(sweep.workdir / p.name), p.failure) for p in left if p.failure)
    metric = tables.primary_metric(runs)
    if metric is None:
        return Section(sweep.name, (), unfinished, failed)
    found = curves(sweep)
    take = partial(names.take, "tables")
    parts: list[Table | Picture] = []
    for family in families(found):
        result, *gains = family_tables(sweep, family, metric, take)
        cosines = (p for curve in family for p in _cosine_pictures(sweep, curve, names))
        parts += [result, *_family_pictures(sweep, family, metric, names), *cosines, *gains]
    parts += beside_tables(sweep, found, metric, take)
    parts += _selection_tables(sweep, metric, names)
    base = next((run for point in sweep.points if (run := _base_run(sweep, point))), None)
    drawn = plots.run_plots(base) if base is not None else {}
    for kind, caption in (
        ("partition", _PARTITION_CAPTION),
        ("reliability", reliability_figure.CAPTION),
    ):
        if kind in drawn:
            name = names.take("plots", sweep.name, kind)
            at_own = f"{caption[:-1]}, at the config's own values."
            parts.append(Picture(name, at_own, drawn[kind]))
    origin = provenance(runs, sweep.command)
    return Section(sweep.name, tuple(parts), unfinished, failed, origin)


def _base_run(sweep: Sweep, point: PointRecord) -> Run | None:
    """Return the finished run of a point whose swept keys all have the config's own values, else None."""
    is_base = all(sweep.base[key] == value for key, value in point.overrides.items())
    return point.run if is_base and point.run is not None and point.run.finished else None


def _selection_tables(sweep: Sweep, metric: str, names: _Names) -> tuple[Table, ...]:
    """Return tables of settings selected without test labels: by clients' labels and by validation."""
    keys = [key for key in swept_keys(sweep) if not key.startswith("selection.")]
    rows = [row_of(sweep, point, keys) for point in sweep.points]
    return _there(
        chosen_settings(
            names.take("tables", sweep.name, "chosen"),
            sweep.name,
            keys or ["point"],
            rows,
        ),
        validated_settings(sweep, metric, names.take("tables", sweep.name, "validated")),
    )


def _family_pictures(
    sweep: Sweep, family: Sequence[Curve], metric: str, names: _Names
) -> Iterator[Picture]:
    """Yield a figure for each curve; for a single method one figure with a line for each curve."""
    algorithms = {name for curve in family for name in ordered_methods(_runs(curve))}
    if len(algorithms) != 1 or not 1 < len(family) <= MOST_LINES:
        for curve in family:
            yield from _curve_pictures(sweep, curve, metric, names)
        return
    (algorithm,) = algorithms
    name = methods_of([run for curve in family for run in _runs(curve)]).name(algorithm)
    key, values = family[0].key, merged_values(family)
    others = other_keys(family)
    examples = min(run.num_examples(metric) for curve in family for run in _runs(curve))
    series = {}
    for curve in family:
        settings = {other: sweep.value(curve.points[0], other) for other in others}
        at = dict(zip(map(repr, curve.values), _measured(curve, algorithm, metric), strict=True))
        series[_settings_text(settings)] = [at.get(repr(value)) for value in values]
    across = ", ".join(map(setting_label, others))
    yield Picture(
        names.take("plots", sweep.name, key),
        f"{metric_label(metric)} of {name} against {setting_label(key)}, a line for "
        f"each value of {across}. Mean over repeats; error bars are one sample deviation.",
        lambda: line_figures.curve_figure(
            key, values, series, metric, title=name, examples=examples
        ),
    )


def _runs(curve: Curve) -> list[Run]:
    return [point.run for point in curve.points if point.run is not None]


def _measured(curve: Curve, algorithm: str, metric: str) -> list[Measurement | None]:
    return [
        point.run.results.get(algorithm, {}).get(metric) if point.run else None
        for point in curve.points
    ]


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{setting_label(k)} {setting_text(v)}" for k, v in settings.items())


def _curve_pictures(sweep: Sweep, curve: Curve, metric: str, names: _Names) -> Iterator[Picture]:
    fixed = _settings_text(curve.fixed)
    parts = ["plots", sweep.name, curve.key, fixed]
    series = {m: _measured(curve, m, metric) for m in ordered_methods(_runs(curve))}
    composed = _composed(curve)
    methods = methods_of(_runs(curve))
    on_top = f"On top: {composed[0]}. " if composed else ""
    if any(m is not None for measurements in series.values() for m in measurements):
        yield Picture(
            names.take(*parts),
            f"{metric_label(metric)} against {setting_label(curve.key)}{' at ' * bool(fixed)}{fixed}. "
            f"{on_top}Mean over repeats; error bars are one sample deviation.",
            lambda: line_figures.curve_figure(
                curve.key,
                curve.values,
                series,
                metric,
                title=fixed,
                above=composed,
                methods=methods,
                examples=min(run.num_examples(metric) for run in _runs(curve)),
            ),
        )


# Swept setting -> metrics with the total epsilon of all releases of a run.
_PROMISES = {
    "epsilon": ("epsilon", "epsilon_if_stable", "epsilon_estimated"),
    "noise": ("prototype_epsilon",),
}


def _composed(curve: Curve) -> tuple[str, list[float]] | None:
    """Return label and total epsilon at each value if noise or the epsilon of one release is swept."""
    method, _, leaf = curve.key.rpartition(".")
    methods = [method] if leaf == "epsilon" else ordered_methods(_runs(curve))
    for metric, name in itertools.product(_PROMISES.get(leaf, ()), methods):
        told = [m and m.mean for m in _measured(curve, name, metric)]
        if leaf == "noise":  # without noise epsilon is infinite
            told = [t if v else math.inf for v, t in zip(curve.values, told, strict=True)]
        whole = [epsilon for epsilon in told if epsilon is not None]
        if len(whole) == len(curve.values) and not all(map(math.isinf, whole)):
            return metric_label(metric), whole
    return None


def _cosine_pictures(sweep: Sweep, curve: Curve, names: _Names) -> Iterator[Picture]:
    """Yield the error of the codes' cosine estimates if the code length is swept."""
    error, theory = (
        _measured(curve, "xclp", name) for name in ("cosine_rmse", "cosine_rmse_theory")
    )
    if curve.key.endswith("num_bits") and any(m is not None for m in error):
        yield Picture(
            names.take("plots", sweep.name, curve.key, _settings_text(curve.fixed), "cosine-rmse"),
            "How far cos(πh/L) is from the cosine, over pairs of points; theory is what L "
            "independent bits give.",
            lambda: line_figures.cosine_error_figure(curve.values, error, theory, key=curve.key),
        )


def _papers(found: Found, names: _Names) -> list[Section]:
    """Return one section with every paper's table that a config names, each once."""
    points = [point.run for sweep in found.sweeps for point in sweep.points]
    runs = [*found.runs, *(run for run in points if run is not None)]
    wanted = sorted({name for run in runs if (name := run.config.get("paper_table"))})
    if not wanted:
        return []
    orientation = [
        tables.paper_orientation(paper_table(name), names.take("tables", "paper", name))
        for name in wanted
    ]
    return [Section("From the papers", tuple(orientation))]


def _markdown(sections: Sequence[Section]) -> str:
    lines = ["# Report", ""]
    for section in sections:
        lines += [f"## {markdown_text(section.title)}", ""]
        lines += [f"- no results yet: `{name.replace('`', '')}`" for name in section.unfinished]
        lines += [
            f"- failed: `{name.replace('`', '')}`, {markdown_text(failure)}"
            for name, failure in section.failed
        ]
        lines += [
            "",
            *(
                part.to_markdown()
                if isinstance(part, Table)
                else f"![{markdown_text(part.caption)}](plots/{part.name}.png)\n"
                for part in section.parts
            ),
        ]
    if made := origins(sections):
        lines += [f'<details markdown="1"><summary>{HOW}</summary>', ""]
        for title, facts in made:
            lines += [f"### {markdown_text(title)}", ""] if title else []
            lines += [*(f"- {name}: {_fact(name, text)}" for name, text in facts), ""]
        lines.append("</details>")
    return "\n".join(lines).rstrip() + "\n"


def _fact(name: str, text: str) -> str:
    """Return a line of the provenance; commands are an indented block of code."""
    if name != "command" or text == "not recorded":
        return markdown_text(text)
    return "\n" + "".join(f"\n      {line}" for line in text.split("\n"))
