"""Text that comes from data or paths is shown, never interpreted: mathematics, HTML, Markdown, formulas."""

import csv
import html
import logging
import re

import pytest
from small_workdirs import make_run

from jaxfed.host.storage import write_csv
from jaxfed.reports import figures as plots
from jaxfed.reports import page, report
from jaxfed.reports.style import plain, text_width
from jaxfed.reports.tables import Table

HOSTILE = [
    *("$100#$200", "price_$_usd_$", "$10k-$20k", r"\frac{1}{0}", "a\nb", "tab\there", "nul\0"),
    *("<img src=x onerror=alert(1)>", "a|b", "`code`", "[link](http://x)", "**bold**", "=1+1"),
    *("@SUM(A1)", "n" * 300, "\U0001f600", "\u4e2d\u6587", "\u05e9\u05dc\u05d5\u05dd"),
    *("half \ud83d", "../../etc"),
]


def test_a_picture_that_cannot_be_drawn_is_a_line(tmp_path, caplog, monkeypatch):
    def broken(*_, **__):
        raise ValueError("no\npicture")

    monkeypatch.setattr(plots, "methods_figure", broken)
    with caplog.at_level(logging.WARNING):
        text = report.write_report([make_run(tmp_path / "w")]).read_text()
    assert "algorithms.png: cannot be drawn (ValueError: no picture)" in caplog.text
    assert "cannot be drawn</p>" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_every_name_can_be_drawn_and_is_no_mathematics(name):
    assert text_width(name, 9) > 0
    assert "$" not in plain(name).replace(r"\$", "")
    assert plain(name).isprintable()
    assert len(plain(name).replace("\\$", "$")) <= 60


@pytest.mark.parametrize("name", [*HOSTILE, r"a\|b", "__init__", "x_y%&<b>", "[z", "cr\rx", " "])
def test_a_cell_is_its_text_in_every_format(name, tmp_path):
    table = Table("t", name, [name, name], [[name, ("5 %", True)]], 1, name, [{"v": name}])
    rendered = page.render(table.to_markdown(), tmp_path)
    cells = [html.unescape(cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", rendered)]
    text = name.encode(errors="backslashreplace").decode()
    shown = text.translate({0: "\ufffd", 10: " ", 13: " "})
    assert cells == [*map(str.strip, (shown, shown, shown)), "<strong>5\xa0%</strong>"]
    _, _, head, _, row, *end = table.to_latex().splitlines()
    assert row == f"{head.partition(' & ')[0]} & \\textbf{{5 \\%}} \\\\"
    assert not {*re.sub(r"\\.", "", head.partition(" & ")[0])} & {*"&#$%^_~<>|"}
    assert head[:1] not in ("[", "*")
    assert end == [r"\bottomrule", r"\end{tabular}"]
    table.write(tmp_path)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        assert [*csv.reader(file)][1] in (
            [f"{mark}{text}".replace("\r", "\n")] for mark in ("", "'")
        )


def test_cells_that_a_spreadsheet_would_run_are_made_inert(tmp_path):
    values = ["=1+1", "+1", "-0.5", "-1e-3 0.2", "@x", "-x", "name", 3, -2.5, None, "\tx"]
    write_csv(tmp_path / "a.csv", ["v"], [{"v": value} for value in values])
    with (tmp_path / "a.csv").open(newline="") as file:
        found = [row["v"] for row in csv.DictReader(file)]
    expected = ["'=1+1", "+1", "-0.5", "-1e-3 0.2", "'@x", "'-x", "name", "3", "-2.5", "", "'\tx"]
    assert found == expected
