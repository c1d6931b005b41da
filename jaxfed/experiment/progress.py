"""What a run shows while it works: a bar with an estimate on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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
    """Of the final table: a metric, where any method has it."""

    metric: str
    heading: str
    text: Callable[[float], str]
    has_deviation: bool = False


_COLUMNS = (
    _Column("test_accuracy", "accuracy, %", _percent, has_deviation=True),
    _Column("test_balanced_accuracy", "balanced, %", _percent, has_deviation=True),
    _Column("epsilon", "epsilon", "{:.4g}".format),
    _Column("epsilon_if_stable", "epsilon if stable", "{:.4g}".format),
    _Column("epsilon_given_bound", "epsilon given bound", "{:.4g}".format),
    _Column("epsilon_estimated", "epsilon, estimate", "{:.4g}".format),
    _Column("prototype_epsilon", "epsilon of prototypes", "{:.4g}".format),
    _Column("seconds", "seconds", "{:.2f}".format),
    _Column("communication.upload_bytes", "up", _bytes),
    _Column("communication.download_bytes", "down", _bytes),
)


# What a round's line says of it: metric, and what stands before it.
_OF_A_ROUND = (
    ("train_loss", "train loss"),
    ("validation_accuracy", "validation accuracy"),
    ("round_test_accuracy", "this round's test accuracy"),
    ("test_accuracy", "test accuracy"),
)


_AS_IN_CONFIG: Mapping[str, str] = MappingProxyType({})  # names of methods


class Progress(Terminal):
    """Shows the rounds of one experiment; a context manager.

    On a terminal a bar counts rounds, beside what was measured last, and every finished method leaves a
    line above it. Elsewhere every round is a line.
    """

    def __init__(self, config: Mapping[str, Any], console: Console | None = None) -> None:
        self._num_repeats = config["num_repeats"]
        num_steps = self._num_repeats * (1 + len(config["baselines"])) * config["rounds"]
        super().__init__(num_steps, "preparing", console)
        self._work = ""
        self._latest: dict[str, Any] = {}
        self._noted: set[str] = set()

    def resumed(self, steps: int) -> None:
        """The run continues after this many rounds."""
        if steps:
            self.completed(steps)
            self.say(f"resuming after {steps} finished rounds")

    def working_on(self, what: str) -> None:
        """Name what runs now, beside the bar."""
        self._work, self._latest = what, {}
        self.describe(what)

    def prepared(self, done: int, total: int) -> None:
        """So much of preprocessing is done."""
        self.describe_part(f"preparing data, {done}/{total}")

    def within(self, what: str, done: int, total: int) -> None:
        """So much of a step of the round that runs now is done, counted in `what`."""
        self.describe_part(f"{self._work}, {done:,}/{total:,} {what}")
        if done == total:
            self.describe(self._work)

    def note(self, line: str) -> None:
        """Say what has not been said before: what holds of one repeat mostly holds of the next."""
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
        """A method has ended before its last round, which would have been step `steps` of the run."""
        self.completed(steps)
        self.say(text)

    def show_results(
        self,
        algorithms: Mapping[str, Any],
        where: str,
        names: Mapping[str, str] = _AS_IN_CONFIG,
        *,
        remarks: Sequence[str] = (),
    ) -> None:
        """Print the final table, in which methods have these names, remarks, and where everything is."""
        self.show(results_table(algorithms, "±" if self.can_print("±") else "+-", names))
        for line in remarks:
            self.say(line)
        self.say(f"results are in {where}")

    def show_audit(
        self,
        methods: Sequence[Mapping[str, Any]],
        where: str,
        names: Mapping[str, str] = _AS_IN_CONFIG,
    ) -> None:
        """Print how vulnerable each method is, by these names, and where all of the audit is."""
        sign = "†" if self.can_print("†") else "*"
        self.show(audit_table(methods, sign, names))
        if any(row.get("accuracy_on") == "asked" for row in methods):
            self.say(
                f"{sign} tested on nothing held out: of its answers to those that attacks ask about"
            )
        self.say(f"the audit is in {where}")

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
    """`train loss 0.5312`, `validation accuracy 0.8125`: as far as the round has measured it."""
    found = [(text, record.get(metric)) for metric, text in _OF_A_ROUND]
    return [f"{text} {value:.4f}" for text, value in found if value is not None]


def results_table(
    algorithms: Mapping[str, Mapping[str, Any]],
    sign: str = "±",
    names: Mapping[str, str] = _AS_IN_CONFIG,
) -> Table:
    """Mean ± deviation of every method's final metrics, from `algorithms` of summary.json."""
    table = Table(box=box.SIMPLE)
    table.add_column("algorithm", no_wrap=True)
    shown = [
        column
        for column in _COLUMNS
        if any(_entry(metrics, column.metric) for metrics in algorithms.values())
    ]
    for column in shown:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, metrics in algorithms.items():
        cells = [_cell(_entry(metrics, column.metric), column, sign) for column in shown]
        table.add_row(names.get(name, name), *cells)
    return table


def audit_table(
    methods: Sequence[Mapping[str, Any]],
    sign: str = "†",
    names: Mapping[str, str] = _AS_IN_CONFIG,
) -> Table:
    """Accuracy beside membership inference, from `methods` of audit.json, the least vulnerable first.

    Methods that show nobody anything have no attack, and come before all others. `sign` marks accuracies that
    are not those of the final test.
    """
    table = Table(box=box.SIMPLE, title="membership inference, strongest attack")
    texts = ("algorithm", "adversary")
    for heading in (
        "algorithm",
        "accuracy, %",
        "AUC",
        "95 % interval",
        "TPR at 1 % FPR, %",
        "adversary",
    ):
        table.add_column(
            heading,
            justify="left" if heading in texts else "right",
            no_wrap=heading != "adversary",
        )
    for row in sorted(methods, key=lambda row: row.get("auc", 0.0)):
        accuracy = "-" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f}"
        if row.get("accuracy_on") == "asked":
            accuracy += f" {sign}"
        seen = ("-", "-", "-")
        if "auc" in row:
            interval = f"{row['low']:.3f} to {row['high']:.3f}"
            seen = (f"{row['auc']:.3f}", interval, f"{100 * row['tpr_at_1_percent']:.1f}")
        adversary = row["adversary"] or "-"
        table.add_row(names.get(row["method"], row["method"]), accuracy, *seen, adversary)
    return table


def _entry(metrics: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    entry: Any = metrics
    for part in key.split("."):
        entry = entry.get(part) if isinstance(entry, Mapping) else None
    return entry


def _cell(entry: Mapping[str, Any] | None, column: _Column, sign: str) -> str:
    """The mean and, behind the sign where the column has it, the deviation."""
    if entry is None or entry["mean"] is None:
        return "-"
    mean = column.text(entry["mean"])
    if not column.has_deviation or entry["std"] is None:
        return mean
    return f"{mean} {sign} {column.text(entry['std'])}"
