"""Text that comes from data or paths is shown, never interpreted: mathematics, HTML, Markdown, formulas."""

import csv
import json
import logging

import numpy as np
import pytest
from small_workdirs import make_run

import jaxfed
from jaxfed.experiment.store.records import read_run
from jaxfed.host.storage import write_csv
from jaxfed.reports import figures as plots
from jaxfed.reports import report, tables
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


@pytest.mark.slow
def test_a_run_whose_classes_have_hostile_names_ends_as_any_other(tmp_path, caplog):
    """`summary.json` and all pictures are there, in a second call as well."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(len(HOSTILE)), 12)
    data = tmp_path / "a.npz"
    x = rng.normal(size=(len(y), 5)) + 3 * np.eye(len(HOSTILE), 5)[y]
    np.savez(data, x=x, y=y, class_names=np.array(HOSTILE))
    settings = {"dataset__name": str(data), "num_repeats": 1, "federation__num_clients": 3}
    with caplog.at_level(logging.WARNING):
        result = jaxfed.run(
            "xclp_digits:smoke",
            workdir=tmp_path / "w",
            progress=False,
            **settings,
            baselines=("client_knn",),
        )
    assert "cannot be drawn" not in caplog.text
    assert (tmp_path / "w" / "plots" / "partition.png").stat().st_size > 1000
    assert json.loads((tmp_path / "w" / "summary.json").read_text())
    assert len(result.predictions("xclp")) == len(y)
    page = report.write_report([tmp_path / "w"])
    assert "<img src=x" not in page.read_text()


@pytest.mark.slow
def test_a_picture_that_cannot_be_drawn_is_a_line_and_the_results_are_there(
    tmp_path, caplog, monkeypatch
):
    def broken(*_, **__):
        raise ValueError("no\npicture")

    monkeypatch.setattr(plots, "methods_figure", broken)
    settings = {"num_repeats": 1, "baselines": ("client_knn",)}
    with caplog.at_level(logging.WARNING):
        jaxfed.run("xclp_digits:smoke", workdir=tmp_path / "w", progress=False, **settings)
    assert "algorithms.png: cannot be drawn (ValueError: no picture)" in caplog.text
    assert json.loads((tmp_path / "w" / "summary.json").read_text())["algorithms"]
    assert (tmp_path / "w" / "plots" / "partition.png").exists()
    text = report.write_report([tmp_path / "w"]).read_text()
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


def test_half_of_a_pair_is_spelled_out(tmp_path):
    write_csv(tmp_path / "a.csv", ["v"], [{"v": "half \ud83d"}])
    assert (tmp_path / "a.csv").read_text() == "v\nhalf \\ud83d\n"
    table = tables.run_table(read_run(make_run(tmp_path / "r")), "r")
    table.write(tmp_path)
