"""The papers' tables: whole, and as printed."""

import pytest

from jaxfed.errors import UsageError
from jaxfed.paper_numbers import PAPER_TABLES, paper_table
from jaxfed.reports import tables


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_papers_tables_are_whole(name):
    table = paper_table(name)
    assert {len(row) for row in table.rows.values()} == {len(table.columns)}
    cells = [cell for row in table.rows.values() for cell in row if cell is not None]
    assert all(0 < mean < 100 for mean, _ in cells)
    assert all(0 < std < 4 for _, std in cells if std is not None)
    shown = tables.paper_orientation(table, "p")
    assert len(shown.records) == len(cells)
    assert table.data in shown.title
    assert "other data" in shown.caption


@pytest.mark.parametrize(
    ("name", "setting", "column", "cell"),
    [
        ("xclp/1", "18597", "pretrained: per-client LP", (55.10, 0.51)),
        ("xclp/2", "2", "FedAvg", (68.75, 0.72)),
        ("xclp/3", "0.05", "XCLP (labeled+unlabeled)", (49.50, 1.42)),
        ("xclp/6", "0.1", "identity: XCLP", (49.29, 0.16)),
        ("protofssl/3", "FixMatch-FedProx", "SVHN, iid", (87.6, None)),
        ("protofssl/3", "FedAvg-SL", "STL-10", None),
        ("protofssl/8", "20", "E = 2", (42.7, None)),
        ("protofssl/9", "10", "STL-10", (62.6, None)),
    ],
)
def test_papers_numbers(name, setting, column, cell):
    table = paper_table(name)
    assert table.rows[setting][table.columns.index(column)] == cell


def test_means_and_gaps_are_shown_as_printed():
    shown = tables.paper_orientation(paper_table("protofssl/3"), "p")
    (row,) = [row for row in shown.rows if row[0].text == "FedProx-SL"]
    assert [cell.text for cell in row[1:]] == ["83.0", "81.2", "95.3", "93.9", "–"]
    assert "as printed in the paper (without deviations)" in shown.caption
    assert (
        "(mean and standard deviation over three runs)"
        in tables.paper_orientation(paper_table("xclp/1"), "p").caption
    )


def test_an_unknown_paper_table_is_named():
    with pytest.raises(UsageError, match="'xclp/9'"):
        paper_table("xclp/9")
