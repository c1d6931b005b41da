"""The papers' tables: whole, and as printed."""

import pytest

from jaxfed.errors import UsageError
from jaxfed.paper_numbers import PAPER_TABLES, paper_table
from jaxfed.reports import tables


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_papers_tables_are_whole(name):
    table = paper_table(name)
    assert {len(row) for row in table.rows.values()} == {len(table.columns)}
    assert set(table.other_metrics) <= set(table.columns)
    cells = [
        (table.measure(column), cell)
        for row in table.rows.values()
        for column, cell in zip(table.columns, row, strict=True)
        if cell is not None
    ]
    accuracies = [cell for metric, cell in cells if metric == table.metric]
    assert all(1 < mean <= 100 for mean, _ in accuracies)
    assert all(0 < std < 4 for _, std in accuracies if std is not None)
    assert all(0.5 < mean < 1 for metric, (mean, _) in cells if metric != table.metric)
    shown = tables.paper_orientation(table, "p")
    assert len(shown.records) == len(cells)
    assert table.data in shown.title
    assert "other data" in shown.caption


@pytest.mark.parametrize(
    ("name", "setting", "column", "cell"),
    [
        ("xclp/1", "18597", "pretrained: per-client LP", (55.10, 0.51)),
        ("xclp/6", "0.1", "identity: XCLP", (49.29, 0.16)),
        ("protofssl/3", "FixMatch-FedProx", "SVHN, iid", (87.6, None)),
        ("protofssl/8", "20", "E = 2", (42.7, None)),
        ("fedct/1", "SVHN", "DP-FedAvg: ACC", (71, 0.5)),
        ("fedct/2", "Covertypes", "RuleFit: FedCT", (73, 2)),
        ("fedct/3", "XGBoost at all", "ACC", (94, None)),
        ("fedct/C.4", "FedCT", "ACC", (51.06, None)),
    ],
)
def test_papers_numbers(name, setting, column, cell):
    table = paper_table(name)
    assert table.rows[setting][table.columns.index(column)] == cell


@pytest.mark.parametrize(
    ("name", "setting", "texts"),
    [
        ("protofssl/3", "FedProx-SL", ["83.0", "81.2", "95.3", "93.9", "–"]),
        ("fedct/1", "MRI", ["63 ± 0.4", "0.52", "62 ± 0.2", "0.51", "66 ± 1.5"]),
    ],
)
def test_numbers_are_shown_as_printed(name, setting, texts):
    shown = tables.paper_orientation(paper_table(name), "p")
    (row,) = [row for row in shown.rows if row[0].text == setting]
    assert [cell.text for cell in row[1:]][: len(texts)] == texts


def test_an_unknown_paper_table_is_named():
    with pytest.raises(UsageError, match="'xclp/9'"):
        paper_table("xclp/9")
