"""The papers' tables: whole, and as printed."""

import pytest

from jaxfed.errors import UsageError
from jaxfed.paper_numbers import PAPER_TABLES, paper_table
from jaxfed.reports import tables


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_papers_tables_are_whole(name):
    table = paper_table(name)
    assert {len(row) for row in table.rows.values()} == {len(table.columns)}
    assert all(0 < mean < 100 and 0 < std < 4 for row in table.rows.values() for mean, std in row)
    shown = tables.paper_orientation(table, "p")
    assert table.data in shown.title
    assert "other data" in shown.caption


@pytest.mark.parametrize(
    ("name", "setting", "column", "cell"),
    [
        ("xclp/1", "18597", "pretrained: per-client LP", (55.10, 0.51)),
        ("xclp/2", "2", "FedAvg", (68.75, 0.72)),
        ("xclp/3", "0.05", "XCLP (labeled+unlabeled)", (49.50, 1.42)),
        ("xclp/6", "0.1", "identity: XCLP", (49.29, 0.16)),
    ],
)
def test_papers_numbers(name, setting, column, cell):
    table = paper_table(name)
    assert table.rows[setting][table.columns.index(column)] == cell


def test_an_unknown_paper_table_is_named():
    with pytest.raises(UsageError, match="'xclp/9'"):
        paper_table("xclp/9")
