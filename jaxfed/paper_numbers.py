"""Results and costs that the papers print, beside one's own: theirs are on other data.

**Results** (`paper_numbers.json`): tables 1 to 6 of XCLP, 3, 4 and 7 to 9 of ProtoFSSL, 1 to 5 and Appendix
C.4 of FedCT. A config names the one that it is modeled on by its key `paper_table`, such as "xclp/1".
Accuracies are in percent. FedCT's VUL is the area under the ROC curve of membership attacks, 0.5 is a guess;
the tool that made it is no longer available, so no areas of other attacks are put beside these.

**Costs** in ProtoFSSL's paper (Tables 1 and 2): formulas, figures, and their omissions. Let F be the
operations of the network for one example, Theta the bytes of its parameters, C the bytes of a prototype, D_L
and D_U a client's labeled and unlabeled examples, E the epochs, H the helpers, renewed every R_H rounds, K
the classes and A the augmentations. A client computes and exchanges in a round

    MixMatch-FedAvg   F (D_L + A D_U) E                             2 Theta
    FixMatch-FedAvg   F (D_L + 2 D_U) E                             2 Theta
    FedMatch          F (D_L + (2 + H) D_U) E                       (4 + 2 H / R_H) Theta
    ProtoFSSL         F (D_L + D_U) E + C H K D_U E + F D_L         2 Theta + C (1 + H) K

(Kim, Park, Sohn, Shu, Kim, arXiv 2205.13921.) Its figures follow with D_L = 50, D_U = 490, A = H = 2, R_H =
10, which it states or cites, and with E = 1 and F = 0.759e9, which it does not state: the forward pass of
ResNet-9 with a multiply-add as two operations. So the figures count one epoch of forward passes. The paper
omits several costs:

  * Training also has backward passes, at about twice the cost, except for passes that only make labels.
    Tables 1 and 2 do not distinguish them.
  * C H K D_U E uses bytes as operations; distances to prototypes take three operations per number.
  * 2 H / R_H counts a helper's model twice: here the server has it already and sends H / R_H Theta.
  * Prototypes are counted without the K bits that mark the existing ones; here with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed.errors import UsageError

PaperCell = tuple[float, float | None] | None


class PaperTable(NamedTuple):
    """A table of a paper: `rows` maps a setting to (mean, deviation), one per column.

    `number` is the table's, or the section of numbers outside of tables, such as "Appendix C.4". An unprinted
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
    def location(self) -> str:
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
    tables = {}
    for name, table in content["tables"].items():
        lists = {key: tuple(each) for key, each in table.items() if isinstance(each, list)}
        rows = {setting: tuple(map(_cell, row)) for setting, row in table["rows"].items()}
        citation = content["citations"][name.partition("/")[0]]
        tables[name] = PaperTable(**{**table, **lists, "rows": rows, "citation": citation})
    return tables


PAPER_TABLES = _read()


def paper_table(name: str) -> PaperTable:
    """The paper's table that a config names by `paper_table`."""
    if name not in PAPER_TABLES:
        known = ", ".join(PAPER_TABLES)
        raise UsageError(f"paper_table: {name!r} is no table known here; known are {known}")
    return PAPER_TABLES[name]


class CostSetting(NamedTuple):
    """Variables of the formulas; the module's docstring defines the symbols."""

    operations: float  # F
    model_bytes: float  # Theta
    labeled: float  # D_L
    unlabeled: float  # D_U
    epochs: int = 1  # E
    helpers: int = 2  # H
    interval: int = 10  # R_H
    prototype_bytes: float = 2048  # C
    classes: int = 10  # K
    augmentations: int = 2  # A


class PaperCosts(NamedTuple):
    """One row of the two tables: formulas for a client's operations and bytes in a round, and the figures."""

    method: str
    operations: Callable[[CostSetting], float]
    bytes: Callable[[CostSetting], float]
    gigaflop: float
    megabytes: float


def _passes(of_unlabeled: Callable[[CostSetting], float]) -> Callable[[CostSetting], float]:
    """F (D_L + n D_U) E."""
    return lambda s: s.operations * (s.labeled + of_unlabeled(s) * s.unlabeled) * s.epochs


def _both_ways(setting: CostSetting) -> float:
    return 2 * setting.model_bytes


def _protofssl(setting: CostSetting) -> float:
    s = setting
    distances = s.prototype_bytes * s.helpers * s.classes * s.unlabeled * s.epochs
    return _passes(lambda s: 1)(s) + distances + s.operations * s.labeled


# By the algorithm's name here. FedRGD's client is FixMatch's.
PAPER_COSTS = {
    "mixmatch": PaperCosts(
        "MixMatch-FedAvg", _passes(lambda s: s.augmentations), _both_ways, 782.0, 52.6
    ),
    "fixmatch": PaperCosts("FixMatch-FedAvg", _passes(lambda s: 2), _both_ways, 782.0, 52.6),
    "fedmatch": PaperCosts(
        "FedMatch",
        _passes(lambda s: 2 + s.helpers),
        lambda s: (4 + 2 * s.helpers / s.interval) * s.model_bytes,
        1526.0,
        115.6,
    ),
    "protofssl": PaperCosts(
        "ProtoFSSL",
        _protofssl,
        lambda s: _both_ways(s) + s.prototype_bytes * (1 + s.helpers) * s.classes,
        447.9,
        52.6,
    ),
}
