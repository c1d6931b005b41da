"""Pages in a browser, wide and on a phone: tables scroll, nothing else is wider than the screen."""

import html
import json
import re
import shutil
import subprocess

import pytest
from small_workdirs import ACCURACIES, make_run, make_sweep

from jaxfed.reports.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# Of the page in a frame of some width: what sticks out, what scrolls, numbers on two lines.
MEASURE = """<iframe id="f" style="width:WIDTHpx;height:900px;border:0" srcdoc="PAGE"></iframe>
<script>document.getElementById("f").onload = ({target}) => {
  const page = target.contentDocument, root = page.documentElement;
  const all = (query) => [...page.querySelectorAll(query)];
  all("details").forEach((one) => { one.open = true; });
  const inside = (one) => one.closest(".scroll, nav");
  const told = {
    widths: [root.scrollWidth, root.clientWidth],
    out: all("body *").filter((one) => !inside(one)
      && one.getBoundingClientRect().right > root.clientWidth + 1).map((one) => one.outerHTML.slice(0, 80)),
    tables: all(".scroll").map((one) => one.scrollWidth > one.clientWidth),
    broken: all("td[style*=right]").filter((one) => {
      const range = page.createRange(); range.selectNodeContents(one);
      return range.getBoundingClientRect().height > 30;  // a line is 22 high
    }).map((one) => one.textContent),
  };
  document.title = JSON.stringify(told);
};</script>"""


def measured(page, folder, width):
    """What the page measures in a window of some width."""
    file = folder / "frame.html"
    file.write_text(MEASURE.replace("WIDTH", str(width)).replace("PAGE", html.escape(page)))
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}"]
    command += ["--window-size=1400,1000", "--virtual-time-budget=3000", "--dump-dom", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title, done.stderr
    return json.loads(html.unescape(title[1]))


@pytest.fixture
def page(tmp_path):
    """A sweep of eight methods, and a run with names without spaces."""
    methods = ("fedavg", "fedprox", "scaffold", "feddyn", "fedsem", "_".join(["long"] * 12))
    accuracies = ACCURACIES | dict.fromkeys(methods[:5], (0.81, 0.85, 0.88))
    make_run(tmp_path / "w" / "_".join(["one"] * 20), ACCURACIES | {methods[5]: (0.5, 0.6, 0.7)})
    points = [(f"{a}", {"xclp.alpha": a}, accuracies) for a in (0.5, 0.9)]
    make_sweep(tmp_path / "w" / "s", points, {"xclp.alpha": 0.5})
    return write_report([tmp_path / "w"]).read_text()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen_and_numbers_do_not_break(page, tmp_path, width):
    found = measured(page, tmp_path, width)
    assert found["widths"][1] in range(width - 16, width + 1)
    assert found["widths"][0] == found["widths"][1]
    assert found["out"] == []
    assert found["broken"] == []
    assert any(found["tables"]) == (width == 390)
