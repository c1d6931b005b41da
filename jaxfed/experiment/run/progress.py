"""Progress display of a run: a bar with a time estimate on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from jaxfed.federation.communication import bytes_unit
from jaxfed.host.terminal import Terminal


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _bytes(size: float) -> str:
    unit, scale = bytes_unit(size)
    return f"{size / scale:.4g}{unit}"


class _Column(NamedTuple):
    """A column of the final table; it is shown if any method has the metric."""

    metric: str
    heading: str
    text: Callable[[float], str]
    has_deviation: bool = False


_COLUMNS = (
    _Column("test_accuracy", "accuracy, %", _percent, has_deviation=True),
    _Column("test_balanced_accuracy", "balanced, %", _percent, has_deviation=True),
    _Column("epsilon", "epsilon", "{:.4g}".format),
    _Column("epsilon_sampled", "epsilon, sampled", "{:.4g}".format),
    _Column("delta", "delta", "{:.4g}".format),
    _Column("noise_multiplier", "noise z", "{:.4g}".format),
    _Column("clip", "clip", "{:.4g}".format),
    _Column("sampling_rate", "sampling rate", "{:.4g}".format),
    _Column("epsilon_if_stable", "epsilon if stable", "{:.4g}".format),
    _Column("epsilon_estimated", "epsilon, estimate", "{:.4g}".format),
    _Column("prototype_epsilon", "epsilon of prototypes", "{:.4g}".format),
    _Column("seconds", "seconds", "{:.2f}".format),
    _Column("communication.upload_bytes", "up", _bytes),
    _Column("communication.download_bytes", "down", _bytes),
)


# Metrics in a round's line, each with its label.
_OF_A_ROUND = (
    ("train_loss", "train loss"),
    ("validation_accuracy", "validation accuracy"),
    ("validation_auroc", "validation AUROC"),
    ("round_test_accuracy", "this round's test accuracy"),
    ("test_accuracy", "test accuracy"),
)


class RunProgress(Terminal):
    """Context manager that displays the rounds of one experiment.

    On a terminal a bar counts rounds and shows the latest measurements; every finished method adds a line
    above it. Elsewhere every round is a line.
    """

    def __init__(self, config: Mapping[str, Any], console: Console | None = None) -> None:
        self._num_repeats = config["num_repeats"]
        num_steps = self._num_repeats * (1 + len(config["baselines"])) * config["rounds"]
        super().__init__(num_steps, "preparing", console)
        self._work = ""
        self._latest: dict[str, Any] = {}
        self._noted: set[str] = set()

    def resumed(self, steps: int) -> None:
        """Show that the run resumes after `steps` rounds."""
        if steps:
            self.completed(steps)
            self.say(f"resuming after {steps} finished rounds")

    def working_on(self, what: str) -> None:
        """Show the current activity beside the bar."""
        self._work, self._latest = what, {}
        self.describe(what)

    def prepared(self, done: int, total: int) -> None:
        """Show the progress of preprocessing."""
        self.describe_part(f"preparing data, {done}/{total}")

    def within(self, what: str, done: int, total: int) -> None:
        """Show the progress within the current round, counted in units of `what`."""
        self.describe_part(f"{self._work}, {done:,}/{total:,} {what}")
        if done == total:
            self.describe(self._work)

    def note(self, line: str) -> None:
        """Print a line once: the same remark mostly applies to every repeat."""
        if line not in self._noted:
            self._noted.add(line)
            self.say(line)

    def finished_round(self, record: Mapping[str, Any], rounds: int) -> None:
        """Count one of a method's rounds and show its line of metrics.jsonl."""
        self.advance()
        if self.is_interactive:
            self._latest |= record
            self.describe("  ".join([self._work, *_measured(self._latest)]))
        if not self.is_interactive or record["round"] == rounds:
            self.say(self._line(record, rounds))

    def stopped(self, text: str, steps: int) -> None:
        """Show that a method ended early; `steps` is the step of what would have been its last round."""
        self.completed(steps)
        self.say(text)

    def show_results(
        self,
        algorithms: Mapping[str, Any],
        where: str,
        names: Mapping[str, str],
        *,
        remarks: Sequence[str] = (),
    ) -> None:
        """Print the final table with these method names, then the remarks and the location of the results."""
        self.show_table(*results_table(algorithms, names))
        for line in remarks:
            self.say(line)
        self.say(f"results are in {where}")

    def show_table(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        num_texts: int = 1,
        title: str | None = None,
    ) -> None:
        """Print a table whose first columns are texts; the others are numbers, which do not wrap."""
        table = Table(box=box.SIMPLE, title=title)
        for place, heading in enumerate(headings):
            is_text = place < num_texts
            table.add_column(
                heading, justify="left" if is_text else "right", no_wrap=not is_text or place == 0
            )
        for row in rows:
            table.add_row(*map(self.printable, row))
        self.console.print(table)

    def _line(self, record: Mapping[str, Any], rounds: int) -> str:
        return "  ".join(
            [
                f"repeat {record['repeat'] + 1}/{self._num_repeats}",
                f"{record['algorithm']:<14}",
                f"round {record['round']}/{rounds}",
                *_measured(record),
                f"{record['seconds']:.2f} s",
            ]
        )


def _measured(record: Mapping[str, Any]) -> list[str]:
    """Return the round's measurements as text, such as `train loss 0.5312`; missing ones are omitted."""
    found = [(text, record.get(metric)) for metric, text in _OF_A_ROUND]
    return [f"{text} {value:.4f}" for text, value in found if value is not None]


def results_table(
    algorithms: Mapping[str, Mapping[str, Any]], names: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of final metrics, mean ± deviation, from `algorithms` of summary.json."""
    shown = [
        column
        for column in _COLUMNS
        if any(_entry(metrics, column.metric) for metrics in algorithms.values())
    ]
    rows = [
        [names.get(name, name), *(_cell(_entry(m, column.metric), column) for column in shown)]
        for name, m in algorithms.items()
    ]
    return ["algorithm", *(column.heading for column in shown)], rows


def _entry(metrics: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    entry: Any = metrics
    for part in key.split("."):
        entry = entry.get(part) if isinstance(entry, Mapping) else None
    return entry


def _cell(entry: Mapping[str, Any] | None, column: _Column) -> str:
    """Return the mean, with the deviation if the column shows deviations."""
    if entry is None or entry["mean"] is None:
        return "-"
    mean = column.text(entry["mean"])
    if not column.has_deviation or entry["std"] is None:
        return mean
    return f"{mean} ± {column.text(entry['std'])}"
