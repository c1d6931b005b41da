"""Text that comes from data or paths is shown, never interpreted: mathematics, HTML, Markdown, formulas."""

import csv
import json
import logging

import pytest
from small_workdirs import make_run

from jaxfed.host.storage import write_csv
from jaxfed.reports import figures as plots
from jaxfed.reports import report
from jaxfed.reports.style import plain, text_width

HOSTILE = [
    *("$100#$200", "price_$_usd_$", "$10k-$20k", r"\frac{1}{0}", "a\nb", "tab\there", "nul\0"),
    *(
        "<img src=x onerror=alert(1)>",
        "a|b",
        "`code`",
        "[link](http://x)",
        "**bold**",
        "=1+1",
        "@SUM(A1)",
    ),
    *(
        "n" * 300,
        "\U0001f600",
        "\u4e2d\u6587",
        "\u05e9\u05dc\u05d5\u05dd",
        "half \ud83d",
        "../../etc",
    ),
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


def test_markdown_and_html_show_names_as_text(tmp_path):
    place = make_run(tmp_path / "r", {"xclp": (0.8, 0.9, 0.7), "client_knn": (0.5, 0.6, 0.4)})
    hostile = "<script>alert(1)</script>|`x`[a](b)"
    summary = json.loads((place / "summary.json").read_text())
    summary["environment"] = {**summary.get("environment", {}), "device": hostile}
    summary["algorithms"][hostile] = summary["algorithms"]["client_knn"]
    (place / "summary.json").write_text(json.dumps(summary))
    page = report.write_report([place])
    markdown = (place / "report" / "report.md").read_text()
    for text in (page.read_text(), markdown):
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text
    assert "](b)" not in markdown
    cells = [line for line in markdown.splitlines() if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in cells[:4]}
    assert len(widths) == 1


def test_cells_that_a_spreadsheet_would_run_are_made_inert(tmp_path):
    values = ["=1+1", "+1", "-0.5", "-1e-3 0.2", "@x", "-x", "name", 3, -2.5, None, "\tx"]
    write_csv(tmp_path / "a.csv", ["v"], [{"v": value} for value in values])
    with (tmp_path / "a.csv").open(newline="") as file:
        found = [row["v"] for row in csv.DictReader(file)]
    expected = ["'=1+1", "+1", "-0.5", "-1e-3 0.2", "'@x", "'-x", "name", "3", "-2.5", "", "'\tx"]
    assert found == expected
