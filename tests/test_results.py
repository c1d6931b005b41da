"""Headlines are computed from committed tables and call level what is level; results name commits that exist.

The rule is in docs/choosing.md, "What to expect": a difference within two of its standard errors is level.
"""

import csv
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from invoking import ROOT

DIFFERENCE = re.compile(r"(\d+(?:\.\d+)?)(?: points)? ± (\d+(?:\.\d+)?)(?! %)")
PREDICTION = "xclp_prediction/{}tables/cifar10-few-labels-{}federation-labeled-fraction"
STEPS = "protofssl/steps/tables/"


def values(table, method, metric, **settings):
    """Return one method's value of each seed, in percent, from a CSV of results/."""
    with (ROOT / f"results/{table}.csv").open() as file:
        (row,) = (
            row
            for row in csv.DictReader(file)
            if (row["algorithm"], row["metric"]) == (method, metric)
            and all(row[key.replace("__", ".")] == value for key, value in settings.items())
        )
    return 100 * np.array(row["values"].split(), float)


def difference(first, second):
    """Return the mean of paired differences and its standard error, as pages print them."""
    gain = first - second
    return f"{abs(gain.mean()):.1f}", f"{gain.std(ddof=1) / len(gain) ** 0.5:.1f}"


def predicted(method, auto=False, **settings):
    table = PREDICTION.format("auto/" * auto, "auto-" * auto)
    settings = {"federation__labeled_fraction": "0.1", **settings}
    return values(table, method, "test_balanced_accuracy", **settings)


def trained(cell, method):
    return values(STEPS + cell, method, "test_accuracy")


def gains(folder, metric):
    """Yield what `auto` gains over the paper's settings in each cell of a folder, with its standard error."""
    for path in (ROOT / "results/xclp_auto" / folder / "tables").glob("*-gains.csv"):
        with path.open() as file:
            for row in csv.DictReader(file):
                if (row["algorithm"], row["over"], row["metric"]) == ("xclp_auto", "xclp", metric):
                    yield float(row["mean"]), float(row["standard_error"])


def ahead_and_behind(folders, metric, errors):
    cells = [cell for folder in folders for cell in gains(folder, metric)]
    ahead = sum(gain > errors * error for gain, error in cells)
    return len(cells), ahead, sum(gain < -errors * error for gain, error in cells)


def text(page):
    return " ".join((ROOT / page).read_text().split())


def headlines():
    """Return README's results and the rows of choosing's table, each as one line."""
    section = (
        (ROOT / "README.md").read_text().partition("## Three results")[2].partition("More:")[0]
    )
    bullets = [" ".join(bullet.split()) for bullet in section.split("\n* ")[1:]]
    table = (ROOT / "docs/choosing.md").read_text().partition("## What to expect")[2]
    return bullets + re.findall(r"^\| (?!setting|:--).*", table, re.MULTILINE)


@pytest.mark.parametrize("headline", headlines())
def test_a_headline_names_seeds_and_budget_and_calls_level_what_is(headline):
    assert re.search(r"\bseeds?\b", headline)
    assert re.search(r"\brounds?\b", headline)
    assert "results/" in headline
    check_level(headline)


def check_level(passage):
    for sentence in re.split(r"(?<=[.;]) ", passage):
        for gain, error in DIFFERENCE.findall(sentence):
            assert float(gain) >= 2 * float(error) or "level" in sentence, sentence


def test_prose_of_results_calls_level_what_is():
    prose = re.sub(r"^\|.*$", "", (ROOT / "docs/results.md").read_text(), flags=re.MULTILINE)
    check_level(" ".join(prose.split()))


def test_xclp_prediction():
    xclp = predicted("xclp", auto=True)
    baselines = ("per_client_lp", "client_knn")
    tuned = [predicted(name, auto=True) for name in baselines]
    for settings in ("given", "cross_validated"):
        tuned += [predicted(name, selection__settings=settings) for name in baselines]
    best = max(tuned, key=np.mean)
    gain, error = difference(xclp, best)
    assert f"{xclp.mean():.1f} % on new points, {gain} points ± {error} above" in text("README.md")
    assert f"XCLP {xclp.mean():.1f} %" in text("docs/choosing.md")
    assert f"inside clients {best.mean():.1f} ({gain} ± {error} less)" in text("docs/choosing.md")
    assert f"{gain} ± {error}" in text("docs/results.md")
    assert f"{gain} ± {error}" in text("results/xclp_prediction/README.md")
    table = "xclp_prediction/no_client_prior/tables/cifar10-no-client-prior"
    without = values(table, "xclp", "test_balanced_accuracy")
    gain, error = difference(without, best)
    for page in ("README.md", "docs/choosing.md", "docs/results.md"):
        assert f"{gain} ± {error}" in text(page)


def test_protofssl_at_equal_steps():
    names = ("protofssl", "protofssl_mean", "fedavg_10_steps")
    own, mean, fedavg = (trained("fashion-mnist", name) for name in names)
    assert f"({mean.mean():.1f} and {fedavg.mean():.1f} %)" in text("README.md")
    assert f"has {own.mean():.1f} as in its paper" in text("README.md")
    gain, error = difference(mean, fedavg)
    assert f"{gain} ± {error} more than FedAvg" in text("docs/results.md")
    gain, error = difference(own, fedavg)
    assert f"{gain} ± {error} points below FedAvg" in text("docs/choosing.md")
    own, mean, fedavg = (trained("cifar10", name) for name in names)
    gain, error = difference(mean, fedavg)
    assert f"{gain} ± {error} below on CIFAR-10" in text("docs/choosing.md")


def test_digits_at_common_and_own_rates():
    for table in ("digits/tables/fssl-digits", "digits_rates/tables/fssl-rates-validated"):
        names = ("sage", "fedavg")
        sage, fedavg = (values(f"fssl/{table}", name, "test_accuracy") for name in names)
        gain, error = difference(sage, fedavg)
        assert f"SAGE is {gain} ± {error} points above" in text("docs/choosing.md")
        for page in ("docs/results.md", "results/fssl/README.md"):
            assert f"{gain} ± {error}" in text(page)
            assert re.search(rf"\bSAGE (\S+ )*?{sage.mean():.1f}", text(page))


def test_cells_of_auto():
    sets = ("", "chars74k", "fashion_mnist")
    cells, ahead, behind = ahead_and_behind(sets, "test_accuracy", 2)
    _, ahead_by_one, behind_by_one = ahead_and_behind(sets, "test_accuracy", 1)
    assert behind == 1
    page = text("docs/results.md")
    assert (
        f"of {cells} cells ahead of the paper's by more than two standard errors in {ahead}" in page
    )
    assert f"behind in one, level in {cells - ahead - behind}; " in page
    assert f"ahead by more than one in {ahead_by_one}, behind in {behind_by_one}" in page
    cells, ahead, behind = ahead_and_behind(("",), "test_balanced_accuracy", 2)
    assert behind == 1
    assert f"of {cells} cells ahead in {ahead}, behind in one" in page


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def history():
    """Skips where there is no whole history to look into."""
    if (
        shutil.which("git") is None
        or git("rev-parse", "--is-shallow-repository").stdout != "false\n"
    ):
        pytest.skip("no git, or no clone with all commits of results")


def commits_named(file: Path) -> set[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return set(re.findall(r'"commit":\s*"([^"]*)"', text))
    lines = re.findall(r"^- commit: (.*)$", text, re.MULTILINE)
    return {commit for line in lines for commit in re.findall(r"\b[0-9a-f]{7,40}\b", line)}


@pytest.mark.usefixtures("history")
def test_every_commit_that_a_result_names_is_in_the_history():
    results = ROOT / "results"
    files = [*results.rglob("*.json"), *results.rglob("report.md")]
    named = {str(file.relative_to(results)): commits_named(file) for file in files}
    there = {commit: _is_ancestor(commit) for commit in set().union(*named.values())}
    assert sum(there.values()) > 5
    assert not {name for name, commits in named.items() if not all(map(there.get, commits))}


def _is_ancestor(commit: str) -> bool:
    return git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
