"""The whole page from runs and sweeps, and `launch.report`."""

import re
from html.parser import HTMLParser

from invoking import called
from small_workdirs import ACCURACIES, PER_CLIENT, make_run, make_sweep

from jaxfed.reports.report import build, write_report
from launch import report


class Page(HTMLParser):
    """All references of a page, and whether its tags close in order."""

    VOID = frozenset({"meta", "img", "source", "br", "circle", "path"})

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.text, self.tags = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [v for k, v in attrs if k in ("src", "srcset", "href", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_report_of_everything(tmp_path):
    work = tmp_path / "work"
    make_run(work / "one", paper_table="xclp/3")
    make_run(work / "two", dataset__name="<b>odd & data</b>")
    make_run(work / "half", finished=False)
    make_sweep(
        work / "bits",
        [
            ("L64", {"xclp.num_bits": 64}, {"xclp": (0.5, 0.6, 0.7), "per_client_lp": PER_CLIENT}),
            ("L512", {"xclp.num_bits": 512}, ACCURACIES),
            ("a5", {"xclp.alpha": 0.5}, ACCURACIES),
            ("L4096", {"xclp.num_bits": 4096}, ACCURACIES),
            ("L8", {"xclp.num_bits": 8192}, None),
        ],
        {"xclp.num_bits": 4096, "xclp.alpha": 0.99},
    )
    path = write_report([work])
    assert path == work / "report" / "report.html"
    text = path.read_text()
    page = Page(text)
    assert page.open == []
    assert all(r.startswith(("data:image/png;base64,", "#")) for r in page.references)
    assert not re.search(r"@import|url\(|<script|<link|<iframe", text)
    words = " ".join(page.text).replace("\xa0", " ")
    assert "60.00 ± 10.00" in words
    assert "<b>odd & data</b>" in words
    assert "bits/L8" in words
    assert "other data" in words
    assert page.tags.count("img") == len(list((path.parent / "plots").glob("*.png")))
    markdown = (path.parent / "report.md").read_text()
    assert "| 64 | **60.00\xa0±\xa010.00** |" in markdown
    for name in re.findall(r"\]\((.*?)\)", markdown):
        assert (path.parent / name).is_file()
    assert {p.name for p in (path.parent / "plots").iterdir()} >= {
        "bits-xclp-num-bits.png",
        "bits-partition.png",
        "one-partition.png",
        "one-algorithms.png",
    }
    names = {"overview", "one", "two", "paper-xclp-3", "bits-xclp-num-bits", "bits-xclp-alpha"}
    names |= {"bits-xclp-num-bits-gains", "bits-xclp-alpha-gains"}
    assert {p.name for p in (path.parent / "tables").iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("csv", "tex")
    }
    latex = (path.parent / "tables" / "one.tex").read_text()
    assert r"method & Test accuracy [\%] &" in latex
    assert r"XCLP & \textbf{84.00 $\pm$ 4.00} &" in latex


def test_a_result_comes_first_then_its_picture_and_once_how_it_was_made(tmp_path):
    make_run(tmp_path / "w" / "one", dataset__name="wine_quality")
    points = [(f"{a}", {"xclp.alpha": a}, ACCURACIES) for a in (0.5, 0.9)]
    make_sweep(tmp_path / "w" / "s", points, {"xclp.alpha": 0.5})
    page = write_report([tmp_path / "w"]).read_text()
    # The same results make the same report, and the report is no result.
    assert write_report([tmp_path / "w"]).read_text() == page
    kinds = re.findall(r"<(table|img|details)\b", page)
    assert kinds == ["table", "img", "table", *["img"] * 1, "table", "img", "img", "details"]
    shown, _, how = page.partition("<details")
    for text in ("launch.sweep --config=a.py", "0123456789ab", "seeds: "):
        assert text not in shown
        assert how.count(text) == 1
    assert "dataset.name=wine_quality" in how
    assert "xclp.num_bits" not in how  # it has its default
    markdown = (tmp_path / "w" / "report" / "report.md").read_text()
    assert len(re.findall(r"^- commit: 0123456789ab", markdown, re.MULTILINE)) == 1
    assert markdown.index("<details ") > markdown.rindex("![")


def test_a_curve_without_results_has_no_picture(tmp_path):
    key = "xclp.alpha"
    points = [(f"{a}", {key: a}, ACCURACIES) for a in (0.5, 0.9)]
    points += [(f"b{b}", {key: 0.7, "cohort_size": b}, None) for b in (1, 2, 3)]
    (section,) = build([make_sweep(tmp_path / "s", points, {key: 0.5, "cohort_size": 0})])
    assert [picture.name for picture in section.pictures] == ["s-xclp-alpha", "s-partition"]
    assert write_report([tmp_path / "s"]).is_file()


def test_launch_report(tmp_path):
    make_run(tmp_path / "one")
    done = called(report.main, tmp_path / "one", f"--out={tmp_path / 'here'}")
    assert (done.returncode, done.stderr) == (0, "")
    assert str(tmp_path / "here" / "report.html") in done.stdout
    assert (tmp_path / "here" / "report.html").is_file()
    assert not [*(tmp_path / "here" / "plots").glob("*.svg")]
    done = called(report.main, tmp_path / "one", f"--out={tmp_path / 'here'}", "--format=pdf,svg")
    plots = [path.name for path in (tmp_path / "here" / "plots").iterdir()]
    assert {f"one-algorithms.{kind}" for kind in ("png", "pdf", "svg")} <= {*plots}
