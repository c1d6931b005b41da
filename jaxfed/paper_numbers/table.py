"""What a table of a paper is, as printed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

THREE_RUNS = "mean and standard deviation over three runs"
MEANS_ALONE = "without deviations"

PaperCell = tuple[float, float | None] | None


class PaperTable(NamedTuple):
    """A table of a paper: `rows` maps a setting to (mean, deviation), one a column.

    `number` is the table's, or where numbers stand that are no table, "Appendix C.4". A deviation that is not
    printed is None, as is a cell that is empty. `metric` is what the table measures, by the name that it has
    in metrics.jsonl, `other_metrics` the columns that measure something else.
    Accuracies are in percent. `statistics` is what is printed of them, `decimals` the digits behind the point
    of accuracies and of their deviations; None: two of each, one where no deviation is printed.
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
        """Where it stands in the paper."""
        return self.number if isinstance(self.number, str) else f"Table {self.number}"

    def measure(self, column: str) -> str:
        """The metric of a column."""
        return self.other_metrics.get(column, self.metric)


def means(*values: float | None) -> tuple[PaperCell, ...]:
    """Cells of printed means."""
    return tuple(None if value is None else (value, None) for value in values)
