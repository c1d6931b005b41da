"""Results that the papers print (`paper_numbers.json`), beside one's own: theirs are on other data.

Tables 1 to 6 of XCLP, 3, 4 and 7 to 9 of ProtoFSSL, 1 to 5 and Appendix C.4 of FedCT. A config names the one
that it is modeled on by its key `paper_table`, such as "xclp/1". Accuracies are in percent. FedCT's VUL is
the area under the ROC curve of membership attacks, 0.5 is a guess; the tool that made it is no longer to be
had. `launch.audit` has attacks of its own, whose areas stand in its own tables: none is put beside these.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed.errors import UsageError

PaperCell = tuple[float, float | None] | None


class PaperTable(NamedTuple):
    """A table of a paper: `rows` maps a setting to (mean, deviation), one per column.

    `number` is the table's, or the place of numbers outside of tables, such as "Appendix C.4". An unprinted
    deviation is None, as is an empty cell. `metric` is the metric of the table, by its name in metrics.jsonl;
    `other_metrics` has the columns with other metrics. `statistics` names the printed statistics, `decimals`
    the decimal places of accuracies and of their deviations; None: two of each, one if no deviation is
    printed.
    """

    number: int | str
    title: str
    data: str
    citation: str
    setting: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[PaperCell, ...]]
    metric: str = "test_accuracy"
    statistics: str = "mean and standard deviation over three runs"
    other_metrics: Mapping[str, str] = {}
    decimals: tuple[int, ...] | None = None

    @property
    def place(self) -> str:
        """Location in the paper, such as "Table 3"."""
        return self.number if isinstance(self.number, str) else f"Table {self.number}"

    def measure(self, column: str) -> str:
        """The metric of a column."""
        return self.other_metrics.get(column, self.metric)


def _cell(printed: Any) -> PaperCell:
    """A number is a mean without a deviation."""
    return tuple(printed) if isinstance(printed, list) else printed and (printed, None)


def _read() -> dict[str, PaperTable]:
    content = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    found = {}
    for name, table in content["tables"].items():
        lists = {key: tuple(each) for key, each in table.items() if isinstance(each, list)}
        rows = {setting: tuple(map(_cell, row)) for setting, row in table["rows"].items()}
        citation = content["citations"][name.partition("/")[0]]
        found[name] = PaperTable(**{**table, **lists, "rows": rows, "citation": citation})
    return found


PAPER_TABLES = _read()


def paper_table(name: str) -> PaperTable:
    """The paper's table that a config names by `paper_table`."""
    if name not in PAPER_TABLES:
        known = ", ".join(PAPER_TABLES)
        raise UsageError(f"paper_table: {name!r} is no table known here; known are {known}")
    return PAPER_TABLES[name]
