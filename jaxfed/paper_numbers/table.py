"""A table of a paper, as printed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

THREE_RUNS = "mean and standard deviation over three runs"
MEANS_ALONE = "without deviations"

PaperCell = tuple[float, float | None] | None


class PaperTable(NamedTuple):
    """A table of a paper: `rows` maps a setting to (mean, deviation), one per column.

    `number` is the table's, or the place of numbers outside of tables, such as "Appendix C.4". An unprinted
    deviation is None, as is an empty cell. `metric` is the metric of the table, by its name in metrics.jsonl;
    `other_metrics` has the columns with other metrics. Accuracies are in percent. `statistics` names the
    printed statistics, `decimals` the decimal places of accuracies and of their deviations; None: two of
    each, one if no deviation is printed.
    """

    number: int | str
    title: str
    data: str
    citation: str
    setting: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[PaperCell, ...]]
    metric: str = "test_accuracy"
    statistics: str = THREE_RUNS
    other_metrics: Mapping[str, str] = MappingProxyType({})
    decimals: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        """Location in the paper, such as "Table 3"."""
        return self.number if isinstance(self.number, str) else f"Table {self.number}"

    def measure(self, column: str) -> str:
        """The metric of a column."""
        return self.other_metrics.get(column, self.metric)


def means(*values: float | None) -> tuple[PaperCell, ...]:
    """Cells of printed means."""
    return tuple(None if value is None else (value, None) for value in values)
