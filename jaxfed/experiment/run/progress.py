"""Progress display of a run: a bar with a time estimate on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from jaxfed.config.keys import flatten
from jaxfed.experiment.store.records import own_measures
from jaxfed.federation.communication import bytes_unit
from jaxfed.host.terminal import Terminal

# Columns of the final table, each shown if any method has the metric, with their headings.
_COLUMNS = {
    "test_accuracy": "accuracy, %",
    "test_balanced_accuracy": "balanced, %",
    **{
        name: name.replace("_", " ")
        for name in (
            *("epsilon", "epsilon_sampled", "epsilon_if_stable", "epsilon_estimated"),
            *("prototype_epsilon", "delta", "noise_multiplier", "clip", "sampling_rate", "seconds"),
        )
    },
    "communication.upload_bytes": "up",
    "communication.download_bytes": "down",
}


class RunProgress(Terminal):
    """Display of an experiment's rounds: a bar, above it a line for each method; elsewhere one a round."""

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
            repeat = f"repeat {record['repeat'] + 1}/{self._num_repeats}"
            where = f"{repeat}  {record['algorithm']:<14}  round {record['round']}/{rounds}"
            self.say("  ".join([where, *_measured(record), f"{record['seconds']:.2f} s"]))

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
        for line in (*remarks, f"results are in {where}"):
            self.say(line)

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
        for column, heading in enumerate(headings):
            is_text = column < num_texts
            table.add_column(
                heading, justify="left" if is_text else "right", no_wrap=not is_text or column == 0
            )
        for row in rows:
            table.add_row(*row)
        self.console.print(table)


def _measured(record: Mapping[str, Any]) -> list[str]:
    """Return the round's losses and accuracies as text, such as `train loss 0.5312`."""
    usual = ("train_loss", "round_test_accuracy", "test_accuracy")
    return [
        f"{name.replace('_', ' ')} {value:.4f}"
        for name, value in record.items()
        if name in usual or (name.startswith("validation_") and "balanced" not in name)
        if isinstance(value, int | float)
    ]


def results_table(
    algorithms: Mapping[str, Mapping[str, Any]], names: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of final metrics, mean ± deviation, from `algorithms` of summary.json."""
    means = {name: dict(flatten(metrics)) for name, metrics in algorithms.items()}
    measured = [key.removesuffix(".values") for mean in means.values() for key in mean]
    columns = _COLUMNS | {key: key for key in own_measures(measured) if "." not in key}
    shown = [key for key in columns if key in measured]
    rows = [
        [names.get(name, name), *(_cell(mean, key) for key in shown)]
        for name, mean in means.items()
    ]
    return ["algorithm", *(columns[key] for key in shown)], rows


def _cell(metrics: Mapping[str, Any], key: str) -> str:
    mean, std = metrics.get(f"{key}.mean"), metrics.get(f"{key}.std")
    if mean is None:
        return "-"
    if key.endswith("accuracy"):
        return " ± ".join(f"{100 * value:.2f}" for value in (mean, std) if value is not None)
    if key.endswith("bytes"):
        unit, scale = bytes_unit(mean)
        return f"{mean / scale:.4g}{unit}"
    return f"{mean:.2f}" if key == "seconds" else f"{mean:.4g}"
